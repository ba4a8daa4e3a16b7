// Tasks with and without commands, and who may be started without one: whole processes.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { openSweep } from '../../lib/sweeps/files/index.ts';
import { openQueue } from '../../lib/sweeps/queue/index.ts';
import { Experiment } from '../support/experiment.ts';
import { finished, output, until } from '../support/machine.ts';

let experiment: Experiment;
const inProject = (path: string) => join(experiment.project, path);

beforeEach(() => {
  experiment = new Experiment(2);
  mkdirSync(inProject('configs'));
  sweep('[1, 2]');
});
afterEach(() => experiment.close());

/** Without a command, as the original has them. */
function sweep(widths: string): void {
  writeFileSync(inProject('configs/config_exp1.yaml'), `exp1:\n  combinations: [{width: ${widths}}]\n`);
}

const run = (...args: string[]) => experiment.run(['run', '--gpus', '2', ...args]);

test('exp manager goes on without a command after exp run has given one', async () => {
  const child = experiment.start(['manager', '--listen', '0', '--stay']);
  const ended = finished(child);
  await output(child, /Marked 0 tasks/);
  child.kill('SIGTERM');
  expect((await ended).code).toBe(143);
  const plan = await experiment.run(['run', '--dry-run', '--json', '--', 'true']);
  expect(JSON.parse(plan.stdout)).toMatchObject({ counts: { pending: 2 } });

  const { code, stdout, stderr } = await run('--', 'true');
  expect(code, stderr).toBe(0);
  expect(stdout).toMatch(/0 of them are new, 2 are known already[\s\S]*2 tasks: 2 completed/);

  const manager = await experiment.run(['manager', '--listen', '0']);
  expect({ code: manager.code, stderr: manager.stderr }).toEqual({ code: 0, stderr: '' });
  expect(manager.stdout).toMatch(/Marked 2 tasks as already completed/);
});

test('a program that does not exist is refused before anything is queued, and the corrected command runs', async () => {
  const { code, stdout, stderr } = await run('--', 'pyhton', '{width}');
  expect({ code, stdout }).toEqual({ code: 64, stdout: '' });
  expect(stderr).toMatch(/cannot run 'pyhton': not found in PATH/);
  expect((await run('--', 'true', '{width}')).code).toBe(0);
});

test('the command of a completed task stays, which is said', async () => {
  // The one with the width 2 isn't found when its turn comes.
  writeFileSync(inProject('train1'), '#!/bin/sh\n', { mode: 0o755 });
  const first = await run('--', './train{width}');
  expect(first.code).toBe(1);
  expect(first.stdout).toMatch(/failed: exp1_1_42: \.\/train2 can't be started: not found/);
  expect((await experiment.status()).failures).toMatchObject([{ starts: 1 }]);
  const other = ['sh', '-c', 'exit 0', 'train{width}'];
  const replaced = await run('--', ...other);
  expect(replaced.code, replaced.stderr).toBe(0);
  expect(replaced.stdout).toMatch(
    /1 of them get another command\n.*1 of them run or are completed with another command[\s\S]*2 tasks: 2 completed/,
  );
});

test('a command of tasks that wait is replaced by another one', async () => {
  writeFileSync(inProject('configs/config_exp1.yaml'), 'exp1:\n  combinations: [{width: [1, 2]}]\n');
  const queue = await openQueue(null, experiment.project);
  const sweep = (command: string[]) => openSweep({ project: experiment.project, command });
  await queue.enqueue((await sweep(['sh', 'tain.sh'])).tasks());
  await queue.close();
  const { code, stdout, stderr } = await run('--', 'true');
  expect(code, stderr).toBe(0);
  expect(stdout).toMatch(/2 of them get another command\n/);
  expect(stdout).toMatch(/2 tasks: 2 completed/);
});

test('exit code, counts and failures are of the sweep that was asked for, not of an earlier one', async () => {
  expect((await run('--grid', 'x=1,2', '--', 'false')).code).toBe(1);
  const { code, stdout, stderr } = await run('--grid', 'y=1..3', '--', 'true');
  expect(code, stderr).toBe(0);
  expect(stdout).toMatch(/Generated 3 total tasks\n.* Marked 0 tasks as already completed\n/);
  expect(stdout).toMatch(
    /Progress: 0\/3 [\s\S]*Progress: 3\/3 \(100\.0%\)[\s\S]*3 tasks: 3 completed, 0 running, 0 waiting/,
  );
  expect(stdout).toMatch(/besides, the task list has 2 tasks of other sweeps: 0 completed, 2 failed/);
  expect(stdout).not.toMatch(/failed: grid/);
  expect(stdout).toMatch(/results: results_grid\/final_results\.csv\n/);
});

test('tasks that an earlier sweep has left run as well, which is told at the start', async () => {
  const queue = await openQueue(null, experiment.project);
  const earlier = await openSweep({ project: experiment.project, grid: ['x=1,2'], command: ['true'] });
  await queue.enqueue(earlier.tasks());
  await queue.close();
  const { code, stdout } = await run('--grid', 'y=1', '--', 'true');
  expect(code).toBe(0);
  expect(stdout).toMatch(
    /Marked 0 tasks as already completed\n.* besides, the task list has 2 tasks of other sweeps to run; to leave them out: gpu-owner exp cancel\n/,
  );
  expect(stdout).toMatch(/besides, the task list has 2 tasks of other sweeps: 2 completed/);
});

test('a sweep that waits for GPUs says so', async () => {
  const holder = experiment.machine.startCommand([
    'run',
    '-n',
    '2',
    '--name',
    'other',
    '--',
    'sleep',
    '1000',
  ]);
  await until(async () => (await experiment.machine.runCommand(['status'])).stdout.includes('other'));
  const child = experiment.start(['run', '--gpus', '2', '--grid', 'y=1,2', '--', 'true']);
  await output(child, /Waiting for a GPU \(position 1 in the queue\)/);
  const ended = finished(child);
  holder.kill('SIGTERM');
  const { code, stdout } = await ended;
  expect(code).toBe(0);
  expect(stdout.match(/Waiting for/g) ?? []).toHaveLength(0); // once for both workers
});

test('hosts are refused where the task list is on a server', async () => {
  const { code, stderr } = await run('--on', 'a', '--queue', 'redis://127.0.0.1', '--', 'true');
  expect(code).toBe(64);
  expect(stderr).toMatch(
    /--on: the task list is on a server; start gpu-owner exp worker on the hosts instead/,
  );
});

test('exp run without a command goes on with what has one, as exp retry says', async () => {
  writeFileSync(inProject('train.sh'), '[ "$1" = 1 ] || exit 3');
  expect((await run('--', 'sh', 'train.sh', '{width}')).code).toBe(1);
  writeFileSync(inProject('train.sh'), 'exit 0');
  const retried = await experiment.run(['retry', 'failed']);
  expect(retried.stdout).toMatch(
    /exp1_1_42\) will start again\. gpu-owner exp run, or exp manager, starts it\./,
  );
  const { code, stdout, stderr } = await run();
  expect(code, stderr).toBe(0);
  expect(stdout).toMatch(/2 tasks: 2 completed/);
});

test('exp run without a command is refused where a task has none, and adds nothing', async () => {
  const first = await run();
  expect(first.code).toBe(78);
  expect(first.stderr).toMatch(/config_exp1\.yaml:1: phase 'exp1' has no command to run; put it at the end/);
  expect(existsSync(inProject('.gpu-owner'))).toBe(false);

  expect((await run('--', 'true')).code).toBe(0);
  sweep('[1, 2, 3]');
  const { code, stderr } = await run();
  expect(code).toBe(78);
  expect(stderr).toContain("phase 'exp1' has no command to run");
  expect((await experiment.status()).total).toBe(2);
});

test('--retries 0 starts a task that fails once', async () => {
  sweep('[1]');
  const { code, stderr } = await run('--retries', '0', '--', 'sh', '-c', 'echo >>starts; exit 1');
  expect(code, stderr).toBe(1);
  expect(readFileSync(inProject('starts'), 'utf8')).toBe('\n');
  expect((await experiment.status()).failures).toMatchObject([{ starts: 1 }]);
});

test('--retries 1000 is refused', async () => {
  const { code, stderr } = await run('--retries=1000', '--', 'true');
  expect(code).toBe(64);
  expect(stderr).toMatch(/--retries: '.*' is not a whole number from 0 to \d+/);
});
