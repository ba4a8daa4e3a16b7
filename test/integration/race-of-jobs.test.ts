import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { finished, Machine, pause, python } from '../support/machine.ts';
import { childrenOf, sendSignal, stat } from '../support/processes.ts';

const GPUS = 4;
const AT_ONCE = 12;
const JOBS = process.env.GPU_OWNER_SOAK ? 2_000 : 60;

const job = join(import.meta.dirname, 'fixtures/grandchild.py');

let machine: Machine;
afterEach(() => machine.close());

test('jobs that live on in grandchildren never share a GPU, also when fronts and keepers are killed', {
  timeout: JOBS * 1_500,
}, async () => {
  machine = new Machine(GPUS);
  const witness = randomBytes(8).toString('hex');
  let started = 0;
  let killed = 0;
  let texts = '';

  const runOne = async (i: number) => {
    const count = String(1 + (i % 2));
    const seconds = String(0.02 + Math.random() * 0.1);
    const words = ['run', '-n', count, '--placeholder', 'none', '--', python, job, witness, seconds];
    // Marks for other tools would keep a job from a GPU whose lock failed, and hide that.
    const child = machine.startCommand(words, { env: { GPU_OWNER_CONVENTIONS: 'none' } });
    const outcome = finished(child); // the job's output is open as long as the grandchild lives
    if (i % 5 === 0) {
      await pause(150 + Math.random() * 200);
      // The front, or the keeper: with both gone, no process is left that could wait for a grandchild.
      const victim = i % 2 === 0 ? child.pid : keeperOf(child.pid as number);
      if (victim !== undefined && sendSignal(victim, 'SIGKILL')) killed++;
    }
    const { stdout, stderr } = await outcome;
    texts += stdout + stderr;
  };

  const slots = Array.from({ length: AT_ONCE }, async () => {
    while (started < JOBS) await runOne(started++);
  });
  await Promise.all(slots);
  expect(texts.match(/violation: .*/g)).toBeNull();
  expect(texts.match(/^used$/gm)?.length).toBeGreaterThan(JOBS * 0.75);
  expect(killed).toBeGreaterThan(JOBS / 20);
  await expect.poll(() => machine.states()).toEqual(Array(GPUS).fill('free'));
});

/** The child of the front that has left its session. */
function keeperOf(front: number): number | undefined {
  return childrenOf(front).find((pid) => stat(pid)?.session === pid);
}
