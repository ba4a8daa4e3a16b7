// Claims a GPU and gives it back, again and again, for contention.js. Told "now START END" (ns on the monotonic clock) on its standard
// input it claims without waiting, and tries again after a millisecond when it is refused; told "line START END" it stands in line.
// Afterwards it says how often it had one, and how often it was refused. Each hold is noted in the witness's log.
import { createInterface } from 'node:readline';
import { GPUOwner } from '../dist/index.js';
import { testimony } from './witness.js';

const OPTIONS = { placeholder: 'none' };
const WARM_UP = 60;

const { had, gone } = testimony(process.argv[2]);
const never = new Int32Array(new SharedArrayBuffer(4));

function giveBack(owner) {
  const [{ index }] = owner.devices;
  had([index]);
  gone([index]);
  owner.release();
}

function claimNow() {
  try {
    giveBack(new GPUOwner(OPTIONS));
    return true;
  } catch (error) {
    if (error.code !== 'ERR_GPU_UNAVAILABLE') throw error;
    Atomics.wait(never, 0, 0, 1);
    return false;
  }
}

async function claimInLine() {
  giveBack(await GPUOwner.acquire(OPTIONS));
  return true;
}

for (let i = 0; i < WARM_UP; i++) claimNow();
console.log('ready');
for await (const line of createInterface({ input: process.stdin })) {
  const [how, start, end] = line.split(' ');
  const claim = how === 'now' ? claimNow : claimInLine;
  const counts = { claims: 0, refusals: 0 };
  const left = Number(BigInt(start) - process.hrtime.bigint()) / 1e6;
  await new Promise((resolve) => setTimeout(resolve, left));
  while (process.hrtime.bigint() < BigInt(end)) {
    counts[(how === 'now' ? claim() : await claim()) ? 'claims' : 'refusals']++;
  }
  console.log(`${counts.claims} ${counts.refusals}`);
}
