// Claims and releases a GPU repeatedly, for contention.js. Told "now START END" (ns on the monotonic clock) on its standard
// input it claims without waiting, and tries again after a millisecond when it is refused; told "line START END" it waits in the queue;
// told "calls START END" it makes the system calls of a claim only. Afterwards it says how often it had one, and how often it was
// refused. Each hold is noted in the witness's log.
// contender.js WITNESS DIRECTORY GPUS WARM-UP: the second and the third are for the calls, the last is a number of claims
import { createInterface } from 'node:readline';
import { GPUOwner } from '../dist/index.js';
import { openClaims } from './baselines/contention.js';
import { testimony } from './witness.js';

const OPTIONS = { placeholder: 'none' };
const MAX_PIDS = 2 ** 22;

const [, , witness, directory, gpus, warmUps] = process.argv;
const { had, gone } = testimony(witness);
const calls = openClaims(directory, Number(gpus));
const never = new Int32Array(new SharedArrayBuffer(4));

function use(gpu) {
  had([gpu]);
  gone([gpu]);
}

function giveBack(owner) {
  use(owner.devices[0].index);
  owner.release();
}

function refused() {
  Atomics.wait(never, 0, 0, 1);
  return false;
}

function claimNow() {
  try {
    giveBack(new GPUOwner(OPTIONS));
    return true;
  } catch (error) {
    if (error.code !== 'ERR_GPU_UNAVAILABLE') throw error;
    return refused();
  }
}

async function claimInLine() {
  giveBack(await GPUOwner.acquire(OPTIONS));
  return true;
}

let generation = 0;
const takeByCalls = () => calls.claim(generation++ * MAX_PIDS + process.pid);

function makeCalls() {
  const claim = takeByCalls();
  if (claim === null) return refused();
  use(claim.gpu);
  calls.release(claim);
  return true;
}

function warmUp() {
  claimNow();
  // Other locks than the claim's: the witness mustn't see them beside it.
  const claim = takeByCalls();
  if (claim !== null) calls.release(claim);
}

const WAYS = { now: claimNow, line: claimInLine, calls: makeCalls };

for (let i = 0; i < Number(warmUps); i++) warmUp();
console.log('ready');
for await (const line of createInterface({ input: process.stdin })) {
  const [how, start, end] = line.split(' ');
  const way = WAYS[how];
  const counts = { claims: 0, refusals: 0 };
  const left = Number(BigInt(start) - process.hrtime.bigint()) / 1e6;
  await new Promise((resolve) => setTimeout(resolve, left));
  while (process.hrtime.bigint() < BigInt(end)) {
    const outcome = way();
    counts[(how === 'line' ? await outcome : outcome) ? 'claims' : 'refusals']++;
  }
  console.log(`${counts.claims} ${counts.refusals}`);
}
