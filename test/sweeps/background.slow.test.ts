// A sweep in the background: what is seen of it, and what is left of it however it ends.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Jobs } from '../jobs/background.ts';
import { Experiment } from '../support/experiment.ts';
import { pause, until } from '../support/machine.ts';
import { isAlive, sendSignal } from '../support/processes.ts';

let experiment: Experiment;
let jobs: Jobs;
beforeEach(() => {
  experiment = new Experiment(2);
  jobs = new Jobs(experiment.machine, { cwd: experiment.project });
});
afterEach(async () => {
  await jobs.end();
  await experiment.close();
});

const grid = (tasks: number) => ['--grid', `seed=1..${tasks}`];
const detach = async (words: string[]): Promise<number> => {
  const { code, stdout, stderr } = await experiment.run(['run', '--detach', '--gpus', 'all', ...words]);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toMatch(/^\d+\n$/);
  return Number(stdout);
};
const counts = async () => {
  const { pending, active, completed } = (await experiment.status()).counts;
  return { pending, active, completed };
};

test('a sweep in the background tells how far it is, what it does, and how it ended', async () => {
  const words = [...grid(4), ...experiment.train('--wait-for', 'go-{seed}', 'loss={seed}')];
  const id = await detach(['--name', 'sweep', ...words]);
  await experiment.untilStarted(2);
  expect(await jobs.find(id)).toMatchObject({
    name: 'sweep',
    state: 'running',
    gpus: [],
    progress: { done: 0, total: 4 },
  });
  await experiment.machine.run(['touch', 'go-1', 'go-2', 'go-3'], { cwd: experiment.project });
  await until(async () => (await jobs.find(id)).progress?.done === 3);
  expect((await jobs.run(['jobs'])).stdout).toMatch(/3\/4 tasks/);
  await experiment.machine.run(['touch', 'go-4'], { cwd: experiment.project });
  expect(await jobs.wait('sweep')).toBe(0);
  expect(await jobs.find(id)).toMatchObject({
    state: 'completed',
    exitCode: 0,
    progress: { done: 4, total: 4 },
  });
  expect(await jobs.logs(id)).toMatch(/4 completed/);
  expect(experiment.starts()).toHaveLength(4);
  expect(jobs.processes()).toEqual([]);
});

const IMMUTABLE =
  spawnSync('sh', ['-c', 'f=$(mktemp) && chattr +i "$f" && chattr -i "$f" && rm "$f"']).status === 0;

test.skipIf(!IMMUTABLE)(
  `a sweep goes on when its job’s file can’t be written${IMMUTABLE ? '' : ': chattr +i is not to be had here'}`,
  async () => {
    const id = await detach([...grid(3), ...experiment.train('--wait-for', 'go-{seed}', 'loss={seed}')]);
    await experiment.untilStarted(2);
    const file = join(jobs.directoryOf(id), 'job');
    await experiment.machine.run(['chattr', '+i', file]);
    await experiment.machine.run(['touch', 'go-1'], { cwd: experiment.project });
    await experiment.untilStarted(3);
    await pause(2_500); // time in which the job would note that
    await experiment.machine.run(['chattr', '-i', file]);
    await until(async () => (await jobs.find(id)).progress?.done === 1);
    await experiment.machine.run(['touch', 'go-2', 'go-3'], { cwd: experiment.project });
    expect(await jobs.wait(id)).toBe(0);
  },
);

test('commands from standard input are refused, and no job is left', async () => {
  const words = ['run', '--detach', '--gpus', 'all', '--commands', '-'];
  const { code, stdout, stderr } = await experiment.run(words);
  expect({ code, stdout }).toEqual({ code: 64, stdout: '' });
  expect(stderr).toMatch(/--detach: .* can't read standard input; write the commands to a file/);
  expect((await jobs.run(['jobs', '--all'])).stdout).toBe('No jobs.\n');
});

test('a sweep with a task that fails ends with 1', async () => {
  const id = await detach([...grid(1), ...experiment.train('--exit', '3')]);
  expect(await jobs.wait(id)).toBe(1);
  expect(await jobs.find(id)).toMatchObject({ state: 'failed', exitCode: 1 });
});

test('a cancelled sweep stops and requeues its tasks, and another run goes on', async () => {
  const id = await detach([...grid(6), ...experiment.train('--wait-for', 'go', 'loss={seed}')]);
  await experiment.untilStarted(2);
  const tasks = experiment.pids();
  expect(await jobs.run(['cancel', String(id)])).toMatchObject({ code: 0, stderr: '' });
  expect((await jobs.find(id)).state).toBe('cancelled');
  expect(tasks.filter(isAlive)).toEqual([]);
  expect(jobs.processes()).toEqual([]);
  await expect.poll(() => experiment.machine.states()).toEqual(['free', 'free']);
  expect(await counts()).toMatchObject({ pending: 6, active: 0, completed: 0 });
  await experiment.machine.run(['touch', 'go'], { cwd: experiment.project });
  expect((await experiment.run(['run', '--gpus', 'all'])).code).toBe(0);
  expect(await counts()).toMatchObject({ pending: 0, completed: 6 });
});

test('a sweep whose controller was killed is not taken for a good one, and goes on when it is resubmitted', async () => {
  const id = await detach([...grid(6), ...experiment.train('--wait-for', 'go', 'loss={seed}')]);
  await experiment.untilStarted(2);
  const tasks = experiment.pids();
  for (const pid of jobs.processes()) sendSignal(pid, 'SIGKILL');
  expect((await jobs.reach(id, 'lost', 'failed')).exitCode).not.toBe(0);
  expect(await jobs.wait(id)).toBe(137);
  await until(() => tasks.every((pid) => !isAlive(pid))); // their keepers end them
  await experiment.machine.run(['touch', 'go'], { cwd: experiment.project });
  const { code, stdout, stderr } = await jobs.run(['resubmit', String(id)]);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(await jobs.wait(stdout.trim())).toBe(0);
  expect(await counts()).toMatchObject({ pending: 0, completed: 6 });
  await expect.poll(() => experiment.machine.states()).toEqual(['free', 'free']);
});
