// The costs of jobs in the background: time beside that of an empty program, in turn; memory, threads and processor time, whatever else
// runs. `npm run bench -- start waiting` measures the same on a machine that has nothing else to do.
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { beginProcessorTime, nameOf, usage } from '../../bench/processes.js';
import { makeEndedJobs } from '../support/ended-jobs.js';
import { type Machine, until } from '../support/machine.ts';
import { type Jobs, jobTest } from './background.ts';

const WAITING = process.env.GPU_OWNER_SOAK === undefined ? 8 : 500;
const ROUNDS = 8;
/**
 * Over `node -e 0`, in ms, where that takes no longer than NODE_MS: so much more on a machine that is slower. The goals are in the benchmark,
 * for machines with nothing else to do; this is what a change in kind exceeds, such as a process or a lock for each job.
 */
const MAX_MS = 300;
const NODE_MS = 40;
const MAX_MB = 2;
/** Shares of a processor are those of each that waits: a heartbeat a second takes less than 0.0001. */
const MAX_SHARE = 0.001;

let machine: Machine;
let jobs: Jobs;
jobTest((opened) => {
  ({ machine, jobs } = opened);
});

/**
 * How much longer something takes than `node -e 0` just before it, in ms, in proportion to that on a quiet machine: the best of several
 * rounds, as whatever else runs only makes a round longer. The first that is good enough will do.
 */
async function overNode(start: () => Promise<unknown>): Promise<number> {
  const time = async (act: () => Promise<unknown>) => {
    const began = performance.now();
    await act();
    return performance.now() - began;
  };
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < ROUNDS && best >= MAX_MS; i++) {
    const node = await time(() => machine.run([process.execPath, '-e', '0']));
    const more = (await time(start)) - node;
    best = Math.min(best, more / Math.max(1, node / NODE_MS));
  }
  console.log(`${best.toFixed(0)} ms over node -e 0`);
  return best;
}

test('submit costs little more than the start of Node.js', async () => {
  await jobs.submit(['true']);
  expect(await overNode(() => jobs.submit(['true']))).toBeLessThan(MAX_MS);
});

test('a thousand jobs that have ended are listed in little more than the start of Node.js', async () => {
  await jobs.submit(['true']);
  await jobs.wait(1);
  makeEndedJobs(machine.stateDirectory(), 1_000);
  const { stdout } = await jobs.run(['jobs']);
  expect(stdout.match(/^ *\d+ +completed /gm)).toHaveLength(1_000);
  expect(await overNode(() => jobs.run(['jobs']))).toBeLessThan(MAX_MS);
});

test(`each of ${WAITING} waiting jobs is one thread, little memory, and hardly any processor time`, {
  timeout: 600_000,
}, async () => {
  await jobs.submit(['-n2', 'sleep', '600']);
  await jobs.reach(1, 'running');
  // The first in the queue keeps Node.js, so that it starts at once.
  for (let i = 0; i <= WAITING; i++) await jobs.submit(['true']);
  const waiters = () => jobs.processes().filter((pid) => nameOf(pid) === 'gpu-owner-wait');
  await until(() => waiters().length === WAITING, 120_000);
  const resting = waiters();
  for (const pid of resting) {
    const { own, threads } = usage(pid);
    expect(threads).toBe(1);
    if (process.env.GPU_OWNER_BUILD === undefined) expect(own).toBeLessThan(MAX_MB);
  }
  const times = beginProcessorTime(resting);
  const began = performance.now();
  await sleep(5_000);
  const shares = times().map((time) => time / (performance.now() - began));
  // A busy host's time is counted as that of the running process.
  const most = shares.sort((a, b) => b - a)[Math.ceil(WAITING / 10)] as number;
  console.log(
    `of ${WAITING} that wait, nine of ten take up to ${(most * 1e6).toFixed(0)} millionths of a processor`,
  );
  expect(most).toBeLessThan(MAX_SHARE);
});
