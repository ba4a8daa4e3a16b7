// Sweeps that search, from outside. A stand-in for Optuna chooses: what it is told is in a file.
import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, type TestContext, test } from 'vitest';
import { Experiment } from '../support/experiment.ts';
import { finished, output, python, until } from '../support/machine.ts';
import { sendSignal, signalLiving } from '../support/processes.ts';
import { soakTest } from '../support/time.ts';

const BRANIN = join(import.meta.dirname, 'fixtures/branin.py');
const SPACE = ['--grid', 'x=-5.0..10', 'y=0.0..15', '--metric', 'loss'];

function newExperiment({ onTestFinished }: TestContext, gpus = 4): Experiment {
  const fixtures = join(import.meta.dirname, 'fixtures');
  const experiment = new Experiment(gpus, { PYTHONPATH: fixtures });
  experiment.env.OPTUNA_LOG = join(experiment.project, 'told.txt');
  onTestFinished(() => experiment.close());
  return experiment;
}

const branin = (...options: string[]) => ['--', python, BRANIN, ...options];
const search = (method: string, trials: number, ...options: string[]) => [
  'run',
  '--gpus',
  'all',
  ...SPACE,
  '--method',
  method,
  '--trials',
  String(trials),
  ...branin(...options),
];

/** The ends that the stand-in was told, by line: `3 COMPLETE 0.5 None {'x': …}`. */
const told = (experiment: Experiment): string[] => {
  const path = experiment.env.OPTUNA_LOG as string;
  return existsSync(path) ? readFileSync(path, 'utf8').trim().split('\n') : [];
};

/** The values of a column of the only table. */
function column(experiment: Experiment, name: string): string[] {
  const path = join(experiment.project, 'results_grid/final_results.csv');
  const [header = '', ...rows] = readFileSync(path, 'utf8').trim().split('\n');
  const at = header.split(',').indexOf(name);
  return rows.map((row) => row.split(',')[at] as string);
}

/** The processes of helpers that this project's runs have started. */
function helpers(experiment: Experiment): number[] {
  const { stdout } = spawnSync('pgrep', ['-f', 'search_helper.py'], { encoding: 'utf8' });
  return stdout
    .split('\n')
    .map(Number)
    .filter((pid) => pid > 0 && environmentOf(pid).includes(`OPTUNA_LOG=${experiment.env.OPTUNA_LOG}\0`));
}

function environmentOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'utf8');
  } catch {
    return '';
  }
}

soakTest.concurrent(
  'a changed space or seed runs what is new, and compares no other trials',
  async (context) => {
    const experiment = newExperiment(context, 1);
    const file = (text: string) => writeFileSync(join(experiment.project, 's.yaml'), text);
    const start = async (least: number, more: string[] = [], fixed = '') => {
      file(`command: sh -c 'echo {x} >>ran; printf {{\\"y\\":%s}} {x} >$GPU_OWNER_RESULT'
p: {${fixed}combinations: {x: {min: ${least}, max: 1000}}}
`);
      const words = ['run', 's.yaml', '--method', 'tpe', '--trials', '6', '--metric', 'y', ...more];
      const isPlanned = more.length === 0 && fixed === '';
      const plan = isPlanned ? await experiment.run([...words, '--dry-run', '--json']) : null;
      const ended = await experiment.run([...words, '--gpus', '1']);
      expect(ended, ended.stdout + ended.stderr).toMatchObject({ code: 0 });
      const ran = readFileSync(join(experiment.project, 'ran'), 'utf8').trim().split('\n').map(Number);
      const { search } = JSON.parse((await experiment.run(['status', '--json'])).stdout);
      return {
        ran,
        best: search.best[0].value,
        planned: plan && (JSON.parse(plan.stdout).counts.new as number),
      };
    };
    const first = await start(1);
    expect(first).toMatchObject({ planned: 6, best: Math.min(...first.ran) });
    const cut = first.ran.toSorted((a, b) => a - b)[2] as number;
    const second = await start(cut);
    const inside = first.ran.filter((x) => x >= cut);
    const fresh = second.ran.slice(6);
    expect(fresh.every((x) => x >= cut)).toBe(true);
    expect(second.best).toBe(Math.min(...inside, ...fresh));
    expect(second.planned).toBe(fresh.length);
    expect(fresh).toHaveLength(2);
    const seeded = await start(cut, ['--search-seed', '7']);
    expect(seeded.ran).toHaveLength(second.ran.length + 6);
    const back = await start(cut);
    expect(back).toEqual({ ran: seeded.ran, best: second.best, planned: 0 });
    const wider = await start(cut, [], 'epochs: 50, ');
    expect(wider.ran).toHaveLength(seeded.ran.length + 6);
    expect(wider.best).toBe(Math.min(...wider.ran.slice(-6)));
  },
);

test.concurrent('a random search has its trials in one table, and shows the best ones', async (context) => {
  const experiment = newExperiment(context);
  const { code, stdout } = await experiment.run(search('random', 12, '--fail-above', '1e9'));
  expect(code).toBe(0);
  const losses = column(experiment, 'loss')
    .map(Number)
    .sort((a, b) => a - b);
  expect(losses).toHaveLength(12);
  expect(stdout).toMatch(new RegExp(`best loss=${Number(losses[0]?.toPrecision(5))} grid_\\d+ x=.* y=`));
  const { stdout: page } = await experiment.run(['status', '--best', '3']);
  expect(page.match(/best loss=[-\d.]+/g)).toEqual(
    losses.slice(0, 3).map((loss) => `best loss=${Number(loss.toPrecision(5))}`),
  );
  const { search: json } = await experiment.status();
  expect(json).toMatchObject({ phase: 'grid', trials: 12, metric: 'loss', goal: 'minimize', isOver: true });
  expect(json.best[0].value).toBe(losses[0]);
});

test.concurrent.for([
  ['tpe', '-I', 'optuna', 'optuna'],
  ['gp', '', 'scipy', 'optuna scipy torch'],
] as const)(
  '%s: without its packages, a search names the line that installs them, and adds nothing',
  async ([method, isolated, missing, packages], context) => {
    const experiment = newExperiment(context);
    const bin = join(experiment.project, 'bin');
    mkdirSync(bin);
    writeFileSync(join(bin, 'python3'), `#!/bin/sh\nexec '${python}' ${isolated} -S "$@"\n`);
    chmodSync(join(bin, 'python3'), 0o755);
    const words = ['run', '--gpus', '1', ...SPACE, '--method', method, '--', 'bin/python3', BRANIN];
    const { code, stderr } = await experiment.run(words);
    expect(code).toBe(64);
    expect(stderr).toContain(
      `bin/python3 doesn't find ${missing}: pip install ${packages}. Without it: --method random`,
    );
    expect((await experiment.status()).total).toBe(0);
  },
);

test.concurrent.for([
  ['echo "no libfoo" >&2; exit 3', 'the helper process of the search has ended: no libfoo'],
  [
    'echo welcome; cat',
    'the helper process of the search has written something else than an answer: welcome',
  ],
])('a Python that does %s is told in a sentence', async ([script, why], context) => {
  const experiment = newExperiment(context, 1);
  writeFileSync(join(experiment.project, 'python3'), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  const words = ['run', '--gpus', '1', ...SPACE, '--method', 'tpe', '--', './python3', BRANIN];
  const { code, stderr } = await experiment.run(words);
  expect({ code, stderr }).toEqual({ code: 71, stderr: `gpu-owner: ${why}\n` });
});

test.concurrent.for(['gp', 'cmaes'])('the sampler of %s chooses trials', async (method, context) => {
  const experiment = newExperiment(context, 1);
  for (const name of ['scipy', 'torch', 'cmaes']) writeFileSync(join(experiment.project, `${name}.py`), '');
  experiment.env.PYTHONPATH += `:${experiment.project}`;
  const { code, stderr } = await experiment.run(search(method, 2));
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(column(experiment, 'loss')).toHaveLength(2);
});

test.concurrent('a search goes on after SIGKILL of its run and of its helper, and tells every end', async (context) => {
  const experiment = newExperiment(context);
  const words = search('tpe', 16, '--seconds', '0.2', '--fail-above', '8');
  const hold = join(experiment.project, 'hold');
  const first = experiment.start(words);
  await experiment.untilStarted(6);
  writeFileSync(hold, '');
  first.kill('SIGKILL');
  await finished(first, 'exit');
  await until(() => helpers(experiment).length === 0);
  expect((await experiment.run(['status'])).stdout).toMatch(/\d+\/16 /);

  rmSync(hold);
  const count = experiment.starts().length;
  const second = experiment.start(words);
  const end = finished(second);
  await experiment.untilStarted(count + 4);
  writeFileSync(hold, '');
  for (const pid of helpers(experiment)) sendSignal(pid, 'SIGKILL');
  writeFileSync(experiment.env.OPTUNA_LOG as string, '');
  rmSync(hold);
  const { code, stdout } = await end;

  const names = column(experiment, 'task_id');
  expect(new Set(names).size).toBe(names.length);
  const { counts, total } = await experiment.status();
  expect(total).toBe(16);
  expect(counts.completed).toBe(names.length);
  expect(counts.failed).toBe(16 - names.length);
  expect(code).toBe(counts.failed > 0 ? 1 : 0);
  expect(stdout).toMatch(/Searching with 16 trials \(tpe\), of which \d+ are known already/);
  // Each trial but the last ones, whose ends nothing is chosen after.
  const ends = told(experiment).map((line) => line.split(' '));
  expect(new Set(ends.map(([number]) => number)).size).toBe(ends.length);
  expect(ends.length).toBeGreaterThanOrEqual(12);
  for (const [, state, value] of ends) expect(state === 'FAIL').toBe(value === 'None');
  expect(ends.filter(([, state]) => state === 'FAIL').length).toBeLessThanOrEqual(counts.failed);
});

test.concurrent('Ctrl-C ends a search whose helper does not answer', async (context) => {
  const experiment = newExperiment(context, 1);
  const child = experiment.start(search('tpe', 1000));
  const end = finished(child);
  await experiment.untilStarted(2);
  const [helper] = helpers(experiment) as [number];
  signalLiving(helper, 'SIGSTOP');
  await until(async () => (await experiment.status()).running.length === 0);
  signalLiving(child.pid as number, 'SIGINT');
  const { code, stdout } = await end;
  expect({ code, ended: /the search has ended.*/.exec(stdout) }).toEqual({ code: 130, ended: null });
  await until(() => helpers(experiment).length === 0);
});

soakTest.concurrent(
  'the same seed and the same order of ends make the same trials, also after SIGKILL',
  async (context) => {
    const [whole, killed] = [newExperiment(context, 1), newExperiment(context, 1)];
    const words = search('tpe', 7, '--seconds', '0.1');
    const running = whole.run(words);
    const child = killed.start(words);
    await killed.untilStarted(4);
    child.kill('SIGKILL');
    await finished(child, 'exit');
    // Until then, the GPU has no other use than the next trial.
    await until(async () => (await killed.status()).running.length === 0);
    expect((await killed.run(words)).code).toBe(0);
    expect((await running).code).toBe(0);
    expect(column(killed, 'x')).toEqual(column(whole, 'x'));
    expect(column(killed, 'y')).toEqual(column(whole, 'y'));
  },
);

test.concurrent('workers of other processes get trials, and wait for a manager that is killed', async (context) => {
  const experiment = newExperiment(context);
  const manage = ['manager', '--no-listen', ...search('tpe', 8, '--seconds', '0.3').slice(3)];
  const manager = experiment.start(manage);
  await output(manager, /Marked 0 tasks/);
  const workers = [1, 2].map(() => experiment.run(['worker', '--gpus', '1']));
  await experiment.untilStarted(4);
  manager.kill('SIGKILL');
  await finished(manager, 'exit');
  const { code } = await experiment.run(manage);
  expect(code).toBe(0);
  for (const worker of await Promise.all(workers)) expect(worker.code).toBe(0);
  expect(column(experiment, 'task_id')).toHaveLength(8);
});

test.concurrent('a search ends when a trial has reached the target of a W&B file', async (context) => {
  const experiment = newExperiment(context, 1);
  const range = (min: string, max: string) => `{distribution: uniform, min: ${min}, max: ${max}}`;
  writeFileSync(
    join(experiment.project, 'grid.yaml'),
    `method: random\nmetric: {name: loss, target: 1.0e+9}\nparameters: {x: ${range('-5', '10')}, y: ${range('0', '15')}}\n`,
  );
  const { code, stdout } = await experiment.run(['run', '--gpus', '1', 'grid.yaml', ...branin()]);
  expect(code).toBe(0);
  expect(stdout).toMatch(
    /the search has ended after \d trials: loss is [-\d.]+, and was to reach 1000000000/,
  );
  expect(column(experiment, 'loss').length).toBeLessThan(10);
});

test.concurrent('a metric that results lack is told with the values that they have', async (context) => {
  const experiment = newExperiment(context, 1);
  const words = ['run', '--gpus', '1', '--grid', 'x=1', 'y=1,2', '--method', 'random', '--metric', 'lost'];
  const { stdout } = await experiment.run([...words, ...branin()]);
  expect(stdout.match(/warning: grid_\d isn't compared with others: its result .*/g)).toEqual([
    expect.stringContaining('has no number lost (it has loss)'),
  ]);
});

test.concurrent('a run without the line of a search runs its trials, adds none, and says so', async (context) => {
  const experiment = newExperiment(context, 1);
  const hold = join(experiment.project, 'hold');
  writeFileSync(hold, '');
  const first = experiment.start(search('tpe', 50));
  await experiment.untilStarted(1);
  first.kill('SIGKILL');
  await finished(first, 'exit');
  rmSync(hold);
  const { code, stdout } = await experiment.run(['run', '--gpus', '1']);
  expect(code).toBe(0);
  expect(stdout).toContain("the search grid isn't continued: to do so, repeat its command line");
  expect(column(experiment, 'loss').length).toBeLessThan(5);
  // More trials than before: those that are there are the first of them.
  const before = column(experiment, 'x');
  expect((await experiment.run(search('tpe', 8))).code).toBe(0);
  const after = column(experiment, 'x');
  expect(after).toHaveLength(8);
  expect(after.slice(0, before.length)).toEqual(before);
});

test.concurrent('a trial that reports worse values than others is stopped, and its row has the last one', async (context) => {
  const experiment = newExperiment(context, 1);
  const epochs = join(import.meta.dirname, 'fixtures/epochs.py');
  const { code, stderr } = await experiment.run([
    ...['run', '--gpus', '1', '--grid', 'x=1,2'],
    ...['--metric', 'loss', '--stop-early', 'hyperband:2', '--', python, epochs],
  ]);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  const rows = column(experiment, 'x').map((x, at) => ({
    x,
    loss: column(experiment, 'loss')[at],
    stopped: column(experiment, 'stopped')[at],
  }));
  const good = rows.find(({ x }) => x === '1');
  const bad = rows.find(({ x }) => x === '2');
  expect(good).toEqual({ x: '1', loss: '1', stopped: '' });
  expect(bad).toMatchObject({ x: '2', loss: '2' });
  // Not before the first rung, and long before the last epoch.
  expect(Number(bad?.stopped)).toBeGreaterThanOrEqual(2);
  expect(Number(bad?.stopped)).toBeLessThan(12);
  const { stdout: status } = await experiment.run(['status', '--best', '2']);
  expect(status).toMatch(
    /best loss=1 \S+ x=1\nbest loss=2 \S+ x=2 \(stopped at step \d+\)\n1 stopped early$/m,
  );
  const terminated = readFileSync(join(experiment.project, 'terminated.txt'), 'utf8').trim().split('\n');
  expect(terminated).toHaveLength(1);
  expect(experiment.rows('results_grid').find((row) => row.startsWith(`${terminated[0]},2,`))).toBeDefined();
});
