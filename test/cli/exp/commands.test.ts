// The commands that look at an experiment, and change it.
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Experiment } from '../../support/experiment.ts';
import { finished, output, until } from '../../support/machine.ts';

let experiment: Experiment;
beforeAll(() => {
  experiment = new Experiment(2);
});
afterAll(() => experiment.close());

test.each(['cancel all', 'worker --wait-for-tasks 0'])(
  '%s without an experiment says so, and creates nothing',
  async (name) => {
    const { code, stdout, stderr } = await experiment.run(name.split(' '));
    expect({ code, stdout }).toEqual({ code: 69, stdout: '' });
    expect(stderr).toMatch(
      /^gpu-owner: there is no experiment in .*project: start one with gpu-owner exp run/,
    );
    expect(existsSync(join(experiment.project, '.gpu-owner/.gitignore'))).toBe(false);
  },
);

test('exp status refuses an empty --project, as of a variable that isn’t set', async () => {
  const { code, stderr } = await experiment.run(['status', '--project', '']);
  expect({ code, stderr }).toEqual({ code: 64, stderr: expect.stringMatching(/--project is empty/) });
});

describe('while two tasks run', () => {
  let child: ReturnType<Experiment['start']>;
  let runEnded: ReturnType<typeof finished>;
  beforeAll(async () => {
    const words = ['run', '--gpus', '2', '--grid', 'lr=1.0,2.5', 'seed=1..2'];
    child = experiment.start([...words, ...experiment.train('--wait-for', 'go', 'loss={lr}')]);
    runEnded = finished(child);
    await experiment.untilStarted(2);
    const logs = async () =>
      (await experiment.status()).running.map(({ log }: { log: string | null }) => log);
    await until(async () => (await logs()).every((log: string | null) => log !== null));
  });

  test('status --json has the documented members', async () => {
    const status = JSON.parse((await experiment.run(['status', '--json'])).stdout);
    expect(status).toEqual(await experiment.status());
    expect(status).toMatchObject({
      project: experiment.project,
      queue: `sqlite:${join(experiment.project, '.gpu-owner/queue.db')}`,
      total: 4,
      counts: { pending: 2, active: 2, completed: 0, failed: 0, cancelled: 0 },
      progress: '0/4 (0.0%)',
      manager: { pid: child.pid },
      pause: null,
      nextTime: null,
      failures: [],
    });
    expect(status.running.map(({ worker }: { worker: string }) => worker).sort()).toEqual(['gpu0', 'gpu1']);
    const [first] = status.running;
    expect(Object.keys(first).sort()).toEqual([
      'gpus',
      'host',
      'id',
      'log',
      'name',
      'pid',
      'since',
      'worker',
    ]);
    expect(first).toMatchObject({
      id: expect.stringMatching(/^t-[0-9a-f]{64}$/),
      name: expect.stringMatching(/^grid_[01]_[12]$/),
      pid: child.pid,
    });
    expect(Math.abs(Date.now() - Date.parse(first.since))).toBeLessThan(60_000);
    const { stdout } = await experiment.run(['status', '--help']);
    for (const key of Object.keys(status)) expect(stdout).toMatch(new RegExp(`\\b${key}\\b`));
  });

  test('status is readable, and --watch repeats it', async () => {
    const { stdout } = await experiment.run(['status']);
    expect(stdout).toMatch(
      /^0\/4 \(0\.0%\): 0 completed, 2 running, 2 waiting\nIts manager is pid \d+\.\nRunning:\n {2}gpu[01] {2}grid_\d_\d {2}GPU-00000000? {2}since \d\d:\d\d \(\d+ s\)\n/,
    );
    const watching = experiment.start(['status', '--watch=100ms', '--json']);
    await output(watching, /"progress".*\n.*"progress"/);
    watching.kill();
    await finished(watching);
  });

  test('retry of a running task says that it runs already', async () => {
    const { stdout } = await experiment.run(['retry', 'grid_0_1']);
    expect(stdout).toBe('No task will start again. 1 task already runs or waits.\n');
  });

  test('logs prints the output so far, and with -f until the task has ended', async () => {
    const { stdout } = await experiment.run(['logs', 'grid_0_1']);
    expect(stdout).toMatch(/^==> grid_0_1 on gpu\d \(.*\) since .*\nhello from grid_0_1\n<== it runs\n$/);
    const following = experiment.start(['logs', '-f', 'grid_0_1']);
    const ended = finished(following);
    await output(following, /hello/);
    writeFileSync(join(experiment.project, 'go'), '');
    const { code, stdout: all } = await ended;
    expect(code).toBe(0);
    expect(all).toMatch(/hello from grid_0_1\n<== completed\n$/);
    expect((await runEnded).code).toBe(0);
  });

  test('export writes a table', async () => {
    const csv = (await experiment.run(['export'])).stdout.replaceAll('\r', '').trim().split('\n');
    expect(csv[0]).toBe('task_id,lr,seed,loss');
    expect(csv.slice(1).sort()).toEqual([
      'grid_0_1,1.0,1,1.0',
      'grid_1_2,1.0,2,1.0',
      'grid_2_1,2.5,1,2.5',
      'grid_3_2,2.5,2,2.5',
    ]);
  });

  test('retry of a completed task takes its row out; names that are wrong are told', async () => {
    const { stdout } = await experiment.run(['retry', 'grid_2_1']);
    expect(stdout).toBe(
      '1 task (grid_2_1) will start again. gpu-owner exp run, or exp manager, starts it.\n',
    );
    expect((await experiment.status()).counts).toMatchObject({ pending: 1, completed: 3 });
    const { code, stderr } = await experiment.run(['cancel', 'grid_7']);
    expect(code).toBe(64);
    expect(stderr).toMatch(/no task has the name or id 'grid_7'/);
    expect((await experiment.run(['run', '--gpus', '1'])).code).toBe(0);
    expect(experiment.rows('results_grid')).toHaveLength(4);
    expect(experiment.starts().filter((name) => name === 'grid_2_1')).toHaveLength(2);
  });

  test('logs of a removed file say where it was', async () => {
    const { stdout: before } = await experiment.run(['logs', 'grid_2_1']);
    expect(before.match(/hello from grid_2_1/g)).toHaveLength(2);
    rmSync(join(experiment.project, 'results_grid'), { recursive: true });
    const { stdout } = await experiment.run(['logs', 'grid_2_1']);
    expect(stdout).toMatch(
      /results_grid\/worker_gpu\d\.log on .* can't be read here: no such file or directory/,
    );
  });
});

test('NaN and infinities are strings in JSON, which every parser reads', async () => {
  const words = ['--dry-run', '--json', '--grid', 'x=.inf,.nan', '--phase', 'other', '--', 'true'];
  const plan = await experiment.run(['run', ...words]);
  expect(JSON.stringify(JSON.parse(plan.stdout).tasks)).toMatch(/"x":"Infinity".*"x":"NaN"/);
});
