// A running program that uses the library, as the benchmarks measure it. Commands come on its standard input, a line each:
//   look N, claim N       N snapshots, N claims and releases of a free GPU: prints the times in ms as JSON
//   take, give            claims GPU 0 in the wait queue, releases it: prints "had MS" and "released MS"
//   contend END           claims and releases any GPU in the wait queue until END: prints how often
// Times are those of the monotonic clock. claimant.js WITNESS PLACEHOLDER
import { createInterface } from 'node:readline';
import { GPUOwner, getGPUsSync } from '../dist/index.js';
import { testimony } from './witness.js';

const [, , witness, placeholder] = process.argv;
const { had, gone } = testimony(witness);
const WARM_UP_MS = 600;
const now = () => Number(process.hrtime.bigint()) / 1e6;

function measure(count, act) {
  for (const end = now() + WARM_UP_MS; now() < end; ) act();
  return Array.from({ length: count }, () => {
    const start = now();
    act();
    return now() - start;
  });
}

async function contend(end) {
  let count = 0;
  while (now() < end) {
    const claim = await GPUOwner.acquire({ placeholder });
    const gpus = claim.devices.map(({ index }) => index);
    had(gpus);
    gone(gpus);
    claim.release();
    count++;
  }
  return count;
}

let owner;
console.log('ready');
for await (const line of createInterface({ input: process.stdin })) {
  const [command, number] = line.split(' ');
  if (command === 'look') console.log(JSON.stringify(measure(Number(number), getGPUsSync)));
  else if (command === 'claim') {
    console.log(JSON.stringify(measure(Number(number), () => new GPUOwner({ placeholder }).release())));
  } else if (command === 'contend') console.log(await contend(Number(number)));
  else if (command === 'take') {
    GPUOwner.acquire({ placeholder, devices: [0] }).then((claim) => {
      const at = now();
      had([0]);
      owner = claim;
      console.log(`had ${at}`);
    });
  } else {
    gone([0]);
    const at = now();
    owner.release();
    console.log(`released ${at}`);
  }
}
