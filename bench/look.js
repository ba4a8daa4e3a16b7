// The library's own look at the GPUs, without what a claim adds to it, in a process of its own, as the library keeps its driver.
import { bundled } from './measure.js';

async function getLook() {
  const { snapshotSync } = await bundled(`export { snapshotSync } from './gpus/snapshot.ts';`);
  return snapshotSync;
}

/** A program that runs has had its functions compiled: so many looks, or for so many ms, aren't counted. */
const WARM_UP = 500;
const WARM_UP_LIMIT = 300;

/** look.js ROUNDS -> the time of each look in nanoseconds, a line each */
if (process.argv[1] === import.meta.filename) {
  const look = await getLook();
  const rounds = Number(process.argv[2]);
  const times = new Float64Array(rounds);
  const warm = performance.now() + WARM_UP_LIMIT;
  for (let i = 0; i < WARM_UP && (i < rounds || performance.now() < warm); i++) look();
  for (let i = 0; i < rounds; i++) {
    const start = process.hrtime.bigint();
    look();
    times[i] = Number(process.hrtime.bigint() - start);
  }
  console.log(times.join('\n'));
}
