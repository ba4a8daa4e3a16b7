// Claims a GPU, for race-window.js, and says which, when the driver had been looked at, when the lease was had and when the process was on
// the GPU, in ns on the monotonic clock. Then it keeps the GPU until its standard input is closed.
import { channel } from 'node:diagnostics_channel';
import { GPUOwner } from '../dist/index.js';

const at = {};
channel('gpu-owner:step').subscribe((reached) => {
  at[reached.step] = reached.at;
});
const owner = new GPUOwner();
console.log(`had ${owner.devices[0].index} ${at.driver} ${at.placeholder} ${at.leased}`);
process.stdin.resume().once('end', () => owner.release());
