// Claims the machine's GPU repeatedly, in the wait queue, and prints when: "had NS" and "released NS" on the monotonic clock.
// Each hold is noted in the witness's log. Told "take" on its standard input it joins the wait queue, told "give" it releases the GPU.
import { channel } from 'node:diagnostics_channel';
import { createInterface } from 'node:readline';
import { GPUOwner } from '../dist/index.js';
import { testimony } from './witness.js';

const { had, gone } = testimony(process.argv[2]);

let leasedAt = 0n;
channel('gpu-owner:step').subscribe(({ step, at }) => {
  if (step === 'leased') leasedAt = at;
});

let owner;
for await (const line of createInterface({ input: process.stdin })) {
  if (line === 'take') {
    GPUOwner.acquire({ placeholder: 'none' }).then((granted) => {
      owner = granted;
      had([owner.devices[0].index]);
      console.log(`had ${leasedAt}`);
    });
  } else {
    gone([owner.devices[0].index]);
    const at = process.hrtime.bigint();
    owner.release();
    console.log(`released ${at}`);
  }
}
