// Takes the machine's GPU again and again, in line, and says when: "had NS" and "released NS" on the monotonic clock.
// Told "take" on its standard input it stands in line, told "give" it gives the GPU back.
import { channel } from 'node:diagnostics_channel';
import { createInterface } from 'node:readline';
import { GPUOwner } from '../dist/index.js';

let leasedAt = 0n;
channel('gpu-owner:step').subscribe(({ step, at }) => {
  if (step === 'leased') leasedAt = at;
});

let owner;
for await (const line of createInterface({ input: process.stdin })) {
  if (line === 'take') {
    GPUOwner.acquire({ placeholder: 'none' }).then((granted) => {
      owner = granted;
      console.log(`had ${leasedAt}`);
    });
  } else {
    const at = process.hrtime.bigint();
    owner.release();
    console.log(`released ${at}`);
  }
}
