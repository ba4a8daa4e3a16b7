// The costs of jobs in the background: time beside that of an empty program, in turn; memory and threads, whatever else runs.
import { readFileSync } from 'node:fs';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Machine, until } from '../support/machine.ts';
import { nameOf } from '../support/processes.ts';
import { Jobs } from './background.ts';

const WAITING = process.env.GPU_OWNER_SOAK === undefined ? 20 : 500;
const ROUNDS = 9;
/** Over `node -e 0`, in ms: the promise is 100, on a machine that has nothing else to do. */
const MAX_MS = 400;
const MAX_PRIVATE_KIB = 2_048;

let machine: Machine;
let jobs: Jobs;
beforeEach(() => {
  machine = new Machine('2');
  jobs = new Jobs(machine);
});
afterEach(async () => {
  await jobs.end();
  await machine.close();
});

const median = (values: number[]) => values.sort((a, b) => a - b)[values.length >> 1] as number;

test('submit costs little more than the start of Node.js', async () => {
  const time = async (start: () => Promise<unknown>) => {
    const began = performance.now();
    await start();
    return performance.now() - began;
  };
  const differences: number[] = [];
  for (let i = 0; i < ROUNDS; i++) {
    const node = await time(() => machine.run([process.execPath, '-e', '0']));
    differences.push((await time(() => jobs.submit(['true']))) - node);
  }
  console.log(`submit: ${median(differences).toFixed(0)} ms over node -e 0`);
  expect(median(differences)).toBeLessThan(MAX_MS);
});

test(`each of ${WAITING} waiting jobs is one thread and little memory`, { timeout: 600_000 }, async () => {
  await jobs.submit(['-n2', 'sleep', '600']);
  for (let i = 0; i < WAITING; i++) await jobs.submit(['true']);
  const waiters = () => jobs.processes().filter((pid) => nameOf(pid) === 'gpu-owner-wait');
  // The first ones stay in Node.js as long as a GPU must be looked at that nobody tells of.
  await until(() => waiters().length >= WAITING - 4, 120_000);
  for (const pid of waiters()) {
    const memory = [
      ...readFileSync(`/proc/${pid}/smaps_rollup`, 'latin1').matchAll(/^Private_\w+:\s+(\d+)/gm),
    ];
    expect(memory.reduce((sum, [, kib]) => sum + Number(kib), 0)).toBeLessThan(MAX_PRIVATE_KIB);
    expect(readFileSync(`/proc/${pid}/status`, 'latin1')).toMatch(/^Threads:\t1$/m);
  }
});
