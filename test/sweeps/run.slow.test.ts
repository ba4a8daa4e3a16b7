// `exp run` from outside: whole processes, real signals. Each test has a machine and a project of its own, and waits for much of the time.
import { appendFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, type TestContext, test } from 'vitest';
import { noMounts } from '../support/doctor.ts';
import { Experiment } from '../support/experiment.ts';
import { command, finished, output, processState, until } from '../support/machine.ts';
import { pause, soakTest } from '../support/time.ts';

function newExperiment({ onTestFinished }: TestContext): Experiment {
  const experiment = new Experiment(4);
  onTestFinished(() => experiment.close());
  return experiment;
}

const grid = (count: number) => ['--grid', 'lr=0.1,0.2', `seed=1..${count / 2}`];
const alive = (pid: number) => ![null, 'Z'].includes(processState(pid));

test.concurrent('exp run turns a sweep file into a table', async (context) => {
  const experiment = newExperiment(context);
  mkdirSync(join(experiment.project, 'configs'));
  writeFileSync(
    join(experiment.project, 'configs/config_exp1.yaml'),
    `defaults:
  dataset: mnist
  output_dir: results_{dataset}
exp1_width:
  combinations:
    - width_factor: [1.0, 2]
    - seed: [42, 43]
`,
  );
  const words = ['run', '--gpus', '3', ...experiment.train('loss={width_factor}')];
  const { code, stdout, stderr } = await experiment.run(words);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toMatch(/4 tasks: 4 completed, 0 running, 0 waiting/);
  expect(
    experiment
      .rows('results_mnist')
      .map((row) => row.split(',')[0])
      .sort(),
  ).toEqual(['exp1_width_0_42', 'exp1_width_1_43', 'exp1_width_2_42', 'exp1_width_3_43']);
  const log = experiment.log();
  for (const pattern of [
    /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d Generated 4 total tasks$/m,
    / Marked 0 tasks as already completed$/m,
    / Assigned task exp1_width_0_42 to gpu\d$/m,
    / Task exp1_width_0_42 completed by gpu\d$/m,
    / Progress: 4\/4 \(100\.0%\)$/m,
  ]) {
    expect(log).toMatch(pattern);
  }
  // Started again, nothing is left to do.
  const again = await experiment.run(words);
  expect(again.code).toBe(0);
  expect(again.stdout).toMatch(/Marked 4 tasks as already completed/);
  expect(experiment.starts()).toHaveLength(4);
});

test.concurrent('SIGHUP lets running tasks finish, and no more are started', async (context) => {
  const experiment = newExperiment(context);
  const words = ['run', '--gpus', '2', ...grid(8), ...experiment.train('--wait-for', 'go', 'x=1')];
  const child = experiment.start(words);
  const ended = finished(child);
  await experiment.untilStarted(2);
  child.kill('SIGHUP');
  await output(child, /ending: running tasks finish, and no more are started/);
  writeFileSync(join(experiment.project, 'go'), '');
  const { code, stdout } = await ended;
  expect(code).toBe(129);
  expect(stdout).toMatch(/8 tasks: 2 completed, 0 running, 6 waiting/);
  expect(experiment.starts()).toHaveLength(2);
  expect(experiment.rows('results_grid')).toHaveLength(2);
});

test.concurrent('a second signal ends commands at once, and their starts do not count', async (context) => {
  const experiment = newExperiment(context);
  const words = [
    'run',
    '--gpus',
    '2',
    ...grid(4),
    ...experiment.train('--stubborn', '--fork', '--wait-for', 'go'),
  ];
  const child = experiment.start(words);
  const ended = finished(child);
  await experiment.untilStarted(2);
  child.kill('SIGINT');
  await output(child, /ending: running tasks finish/);
  child.kill('SIGINT');
  const { code, stdout } = await ended;
  expect(code).toBe(130);
  expect(stdout).toMatch(/ending at once/);
  expect(experiment.pids().filter(alive)).toEqual([]);
  const { counts } = await experiment.status();
  expect(counts).toEqual({ pending: 4, active: 0, completed: 0, failed: 0, cancelled: 0 });
  writeFileSync(join(experiment.project, 'go'), '');
  expect((await experiment.run(words)).code).toBe(0);
});

test.concurrent('a failed task has three starts, makes the exit code 1, and can be retried', async (context) => {
  const experiment = newExperiment(context);
  const fails = ['run', '--gpus', '1', '--grid', 'seed=1,2', ...experiment.train('--exit', '3')];
  const first = await experiment.run(fails);
  expect(first.code).toBe(1);
  expect(experiment.starts().sort()).toEqual([...Array(3).fill('grid_0_1'), ...Array(3).fill('grid_1_2')]);
  expect(first.stdout).toMatch(/failed: grid_0_1: exit code 3/);
  expect(first.stdout).toMatch(/gpu-owner exp logs NAME; start them again: gpu-owner exp retry failed/);
  // They stay failed until the user retries them, with a command that works now.
  expect((await experiment.run(fails)).code).toBe(1);
  expect(experiment.starts()).toHaveLength(6);
  expect((await experiment.run(['retry', 'failed'])).stdout).toMatch(/2 tasks \(grid_0_1, grid_1_2\)/);
  // So do those whose command is another one now.
  const works = ['run', '--gpus', '1', '--grid', 'seed=1,2', ...experiment.train('x=1')];
  expect((await experiment.run(works)).code).toBe(0);
});

test.concurrent('three different tasks that fail in a row pause the sweep, and the next start goes on', async (context) => {
  const experiment = newExperiment(context);
  const words = ['run', '--gpus', '1', ...grid(8), ...experiment.train('--wait-for', 'go', '--exit', '1')];
  writeFileSync(join(experiment.project, 'go'), '');
  const { code, stdout } = await experiment.run(words);
  expect(code).toBe(1);
  expect(stdout).toMatch(/paused after failures: 3 tasks failed in a row, all with: exit code 1/);
  expect(experiment.starts()).toHaveLength(3);
  const { pause } = await experiment.status();
  expect(pause).toMatchObject({ by: 'failures' });
  const again = await experiment.run(words);
  expect(again.stdout).toMatch(/the pause after failures is over/);
  expect(experiment.starts().length).toBeGreaterThan(3);
});

test.concurrent('a second exp run works and watches, and takes over when the first is killed', async (context) => {
  const experiment = newExperiment(context);
  const words = ['run', '--gpus', '1', ...grid(8), ...experiment.train('--wait-for', 'go', 'x=1')];
  const first = experiment.start(words);
  await experiment.untilStarted(1);
  const second = experiment.start(words);
  const ended = finished(second);
  await output(second, new RegExp(`pid ${first.pid} manages this queue`));
  await until(
    async () =>
      new Set((await experiment.status()).running.map(({ worker }: { worker: string }) => worker)).size === 2,
  );
  first.kill('SIGKILL');
  await output(second, /the other manager is gone/);
  writeFileSync(join(experiment.project, 'go'), '');
  const { code } = await ended;
  expect(code).toBe(0);
  expect(experiment.rows('results_grid')).toHaveLength(8);
});

test.concurrent('exp run goes on when nobody reads its output any longer', async (context) => {
  const experiment = newExperiment(context);
  const words = ['run', '--gpus', '2', ...grid(6), ...experiment.train('--seconds', '0.2', 'x=1')];
  const child = experiment.start(words);
  child.stdout?.destroy();
  child.stderr?.destroy();
  const { code } = await finished(child, 'exit');
  expect(code).toBe(0);
  expect(experiment.rows('results_grid')).toHaveLength(6);
});

test.concurrent('a log that can not be written stops nothing; no task reads standard input', async (context) => {
  const experiment = newExperiment(context);
  mkdirSync(join(experiment.project, 'experiment_manager.log'));
  const command = ['--', 'sh', '-c', '! read line'];
  const { code, stdout } = await experiment.run(['run', '--gpus', '1', '--grid', 'a=1', ...command]);
  expect(code).toBe(0);
  expect(stdout).toMatch(/warning: .*experiment_manager.log can't be written/);
});

test.concurrent('a person’s pause holds until resume; cancel takes tasks out', async (context) => {
  const experiment = newExperiment(context);
  const words = ['run', '--gpus', '2', ...grid(6), ...experiment.train('--wait-for', 'go', 'x=1')];
  const child = experiment.start(words);
  const ended = finished(child);
  await experiment.untilStarted(2);
  expect((await experiment.run(['pause', 'the disk is full'])).stdout).toMatch(/2 running tasks continue/);
  writeFileSync(join(experiment.project, 'go'), '');
  await until(async () => (await experiment.status()).counts.completed === 2);
  await pause(500);
  expect(experiment.starts()).toHaveLength(2);
  expect((await experiment.status()).pause).toMatchObject({ by: 'person', message: 'the disk is full' });
  expect((await experiment.run(['cancel', 'grid_5_3'])).stdout).toBe('Cancelled: 1 task (grid_5_3).\n');
  expect((await experiment.run(['resume'])).stdout).toMatch(/Tasks are started again: 3 wait/);
  const { code, stdout } = await ended;
  expect(code).toBe(1);
  expect(stdout).toMatch(/6 tasks: 5 completed, 1 cancelled, 0 running, 0 waiting/);
});

test.concurrent('exp run without a sweep goes on with what the project has; with nothing at all it says what to do', async (context) => {
  const experiment = newExperiment(context);
  const nothing = await experiment.run(['run', '--gpus', '1']);
  expect(nothing.code).toBe(64);
  expect(nothing.stderr).toMatch(/name a sweep file/);
  const child = experiment.start([
    'run',
    '--gpus',
    '1',
    ...grid(4),
    ...experiment.train('--seconds', '0.2', 'x=1'),
  ]);
  await experiment.untilStarted(2);
  child.kill('SIGKILL');
  await finished(child, 'exit');
  expect((await experiment.run(['run', '--gpus', 'all'])).code).toBe(0);
  expect(experiment.rows('results_grid')).toHaveLength(4);
});

test.concurrent('exp run has to be told how many GPUs it may take, and the number has to be possible', async (context) => {
  const experiment = newExperiment(context);
  const run = (...args: string[]) => experiment.run(['run', ...args, ...grid(2), ...experiment.train()]);
  const unsaid = await run();
  expect(unsaid.code).toBe(64);
  expect(unsaid.stderr).toMatch(/how many GPUs\? Use --gpus 4, or --gpus all \(4 of 4 are free now\)/);
  for (const [args, message] of [
    [['--gpus', '9'], /9 GPUs asked for, but this machine has 4/],
    [['--gpus', '3', '--gpus-per-task', '2'], /3 can't be divided into tasks with 2 each; use 2 or 4/],
  ] as const) {
    const { code, stderr } = await run(...args);
    expect([args, code]).toEqual([args, 64]);
    expect(stderr).toMatch(message);
  }
  expect(existsSync(join(experiment.project, '.gpu-owner'))).toBe(false);
});

test.concurrent('`exp worker` helps, and ends when nothing is left', async (context) => {
  const experiment = newExperiment(context);
  const words = ['run', '--gpus', '1', ...grid(6), ...experiment.train('--wait-for', 'go', 'x=1')];
  const child = experiment.start(words);
  const ended = finished(child);
  await experiment.untilStarted(1);
  const helping = experiment.run(['worker', '--gpus', '2']);
  await experiment.untilStarted(3);
  writeFileSync(join(experiment.project, 'go'), '');
  const worker = await helping;
  expect(worker.code).toBe(0);
  expect(worker.stdout).toMatch(/Task grid_\d_\d completed by gpu1/);
  expect((await ended).code).toBe(0);
  expect(experiment.log()).toMatch(/Task grid_\d_\d completed by gpu1/);
  expect(experiment.rows('results_grid')).toHaveLength(6);
});

const BAD = 'task_id,seed\n"a"b,1\nc,d\n';

test.concurrent('a table that can not be read is refused before anything runs, as its rows may be those of the tasks', async (context) => {
  const experiment = newExperiment(context);
  mkdirSync(join(experiment.project, 'results_grid'));
  const table = join(experiment.project, 'results_grid/final_results.csv');
  writeFileSync(table, BAD);
  const { code, stderr } = await experiment.run([
    'run',
    '--gpus',
    '1',
    ...grid(2),
    ...experiment.train('x=1'),
  ]);
  expect(code).toBe(78);
  expect(stderr).toMatch(/a table of results can't be read.*Repair or move the table/);
  expect(experiment.starts()).toEqual([]);
  // A user who has mistaken the directory takes the tasks out.
  const cancel = /gpu-owner exp (cancel \S+)/.exec(stderr)?.[1] as string;
  expect((await experiment.run([...cancel.split(' '), 'grid_1_1'])).code).toBe(0);
  const other = await experiment.run([
    'run',
    '--gpus',
    '1',
    '--grid',
    'b=1',
    'output_dir=other',
    '--',
    'true',
  ]);
  expect(other.stdout).toMatch(
    /1 task: 1 completed[\s\S]* 2 tasks of other sweeps: 0 completed, 2 cancelled/,
  );
  expect(experiment.rows('other')).toHaveLength(1);
  expect(readFileSync(table, 'utf8')).toBe(BAD);
});

test.concurrent('an output directory that can not be one is told of before anything is added', async (context) => {
  const experiment = newExperiment(context);
  writeFileSync(join(experiment.project, 'results_2'), '');
  const words = [...grid(4), '--output-dir', 'results_{seed}', ...experiment.train()];
  const { code, stderr } = await experiment.run(['manager', '--no-listen', ...words]);
  expect({ code, stderr }).toEqual({
    code: 78,
    stderr: expect.stringMatching(/output_dir 'results_2' \(.* is not a directory\).*Nothing was/),
  });
  expect((await experiment.status()).total).toBe(0);
});

test.concurrent('a table to which nothing can be written is refused before anything runs', async (context) => {
  const experiment = newExperiment(context);
  mkdirSync(join(experiment.project, 'results_grid'));
  const table = join(experiment.project, 'results_grid/final_results.csv');
  const text = 'lr,seed,loss\n0.1,1';
  writeFileSync(table, text);
  const why = ':2: the last line is cut off: complete or remove it';
  const words = [...grid(2), ...experiment.train('x=1')];
  expect((await experiment.run(['run', '--dry-run', ...words])).stderr).toContain(why);
  const { code, stderr } = await experiment.run(['run', '--gpus', '1', ...words]);
  expect({ code, stderr }).toEqual({ code: 78, stderr: expect.stringContaining(why) });
  expect(experiment.starts()).toEqual([]);
  expect(readFileSync(table, 'utf8')).toBe(text);
  appendFileSync(table, ',5\n');
  expect((await experiment.run(['run', '--gpus', '1', ...words])).code).toBe(0);
  expect(experiment.rows('results_grid')).toHaveLength(2);
});

soakTest.concurrent(
  'a table that is cut while tasks run ends exp run, and a later start writes its rows',
  async (context) => {
    const experiment = newExperiment(context);
    const table = join(experiment.project, 'results_grid/final_results.csv');
    mkdirSync(join(experiment.project, 'results_grid'));
    writeFileSync(table, 'seed,loss\n');
    const words = [
      'run',
      '--gpus',
      '1',
      '--grid',
      'seed=1,2',
      '--',
      'sh',
      '-c',
      'printf 8 >> results_grid/final_results.csv',
    ];
    const { code, stderr } = await experiment.run(words);
    expect({ code, stderr }).toEqual({
      code: 78,
      stderr: expect.stringMatching(/results are kept in the task list.*csv:2: the last line is cut off/),
    });
    writeFileSync(table, 'seed,loss\n');
    expect((await experiment.run(words)).code).toBe(0);
    expect(experiment.rows('results_grid')).toEqual(['1,,grid_0_1', '2,,grid_1_2']);
  },
);

test
  .skipIf(noMounts !== null)
  .concurrent('nothing is lost when the disk is full for a while (needs to mount)', async (context) => {
    const experiment = newExperiment(context);
    const words = [process.execPath, command, 'exp', 'run', '--gpus', '2', ...grid(12)];
    const run = [...words, ...experiment.train('--seconds', '0.5', 'x=1')];
    // The machine is elsewhere: only the project's disk is full.
    const script = `mount -t tmpfs -o size=2m,mode=755 tmpfs . && cd "$PWD" && { "$@" & run=$!
    while ! grep -q 'completed by' experiment_manager.log 2>/dev/null; do sleep 0.05; done
    dd if=/dev/zero of=fill bs=1k count=3000 2>/dev/null; sleep 1.5; rm fill
    wait $run; echo "code $?"; cat results_grid/final_results.csv; }`;
    const { stdout } = await experiment.machine.run(['unshare', '-m', 'sh', '-c', script, 'sh', ...run], {
      cwd: experiment.project,
    });
    expect(stdout).toMatch(/^code 0$/m);
    expect(stdout).toMatch(/disk is full|no space left on device/);
    expect(new Set(stdout.match(/^grid_\d+_\d(?=,)/gm)).size).toBe(12);
    expect(stdout.match(/^grid_\d+_\d(?=,)/gm)).toHaveLength(12);
  });
