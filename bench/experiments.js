// The cost of experiments: a task over its bare command, a large sweep, a look at it, and its table of results.
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { bundled, compiled, environment, pause, peakMemory, summarize } from './measure.js';

const root = dirname(import.meta.dirname);
const command = join(root, 'dist/gpu-owner.cjs');
const COMMAND = ['true'];
const FEW = 20;
const BATCH = 250; // rows

export const experiments = {
  title: 'Experiments',
  question:
    'What does a task cost beyond its command, and how long does it take to start, show and write a sweep of many tasks?',
  async run(bench) {
    const size = bench.quick
      ? { tasks: 60, repetitions: 1, many: 2_000, rows: 2_000, starts: 1, looks: 2 }
      : { tasks: 400, repetitions: 5, many: 100_000, rows: 50_000, starts: 3, looks: 20 };
    const env = environment({
      GPU_OWNER_SIMULATE: '1',
      GPU_OWNER_SIMULATE_DIR: join(bench.directory, 'machines'),
    });
    return [
      await overhead(bench, env, size),
      ...(await manyTasks(bench, env, size)),
      ...(await results(bench, size)),
    ];
  },
};

/** The same command, in turn. The cost of the sweep itself is taken out: the difference of two sweeps counts. */
async function overhead({ directory, log }, env, { tasks, repetitions }) {
  log(`sweeps of ${tasks} tasks, beside loops`);
  const times = { 'C, in a loop': [], 'Node.js, in a loop': [], 'gpu-owner exp run': [] };
  for (let i = 0; i < repetitions; i++) {
    times['C, in a loop'].push(loopInC(tasks, directory));
    times['Node.js, in a loop'].push((await loop(tasks, directory)) / tasks);
    const few = sweep(FEW, join(directory, `few-${i}`), env);
    const all = sweep(tasks, join(directory, `all-${i}`), env);
    times['gpu-owner exp run'].push((all - few) / (tasks - FEW));
  }
  return {
    name: 'task',
    title: 'Time per task, one after the other on one GPU',
    unit: 'ms',
    note: `the command is \`${COMMAND.join(' ')}\`; each value is the mean of ${tasks} tasks, start and end of the sweep excluded`,
    base: 'C, in a loop',
    rows: [{ label: 'a task', series: summaries(times) }],
    chart: 'bars',
  };
}

function loopInC(count, directory) {
  const out = execFileSync(compiled(directory, 'spawn.c'), [String(count), ...COMMAND], { encoding: 'utf8' });
  const nanoseconds = out.trim().split('\n').map(Number);
  return nanoseconds.reduce((sum, value) => sum + value, 0) / count / 1e6;
}

async function loop(count, directory) {
  const output = openSync(join(directory, 'output'), 'a');
  const begin = performance.now();
  for (let i = 0; i < count; i++) {
    await new Promise((resolve) => {
      spawn(COMMAND[0], COMMAND.slice(1), { stdio: ['ignore', output, output] }).once('exit', resolve);
    });
  }
  closeSync(output);
  return performance.now() - begin;
}

function sweep(count, project, env) {
  const cwd = mkdtempSync(`${project}-`);
  const args = ['exp', 'run', '--gpus', '1', '--grid', `i=1..${count}`, '--', ...COMMAND];
  const begin = performance.now();
  const { status, stderr } = spawnSync(process.execPath, [command, ...args], { env, cwd, encoding: 'utf8' });
  if (status !== 0) throw new Error(`exp run exited with ${status}: ${stderr}`);
  return performance.now() - begin;
}

/** From start until the first command runs, and then how long a look at it takes. */
async function manyTasks({ directory, log }, env, { many, starts, looks }) {
  const seconds = [];
  const megabytes = [];
  const times = { 'node -e 0': [], 'gpu-owner exp status': [] };
  for (let i = 0; i < starts; i++) {
    log(`a sweep of ${many} tasks starts`);
    const cwd = mkdtempSync(join(directory, 'many-'));
    const args = ['exp', 'run', '--gpus', '1', '--grid', `i=1..${many}`, '--', 'sleep', '1000'];
    const begin = performance.now();
    const child = spawn(process.execPath, [command, ...args], { env, cwd, stdio: 'ignore' });
    const journal = join(cwd, 'experiment_manager.log');
    while (!existsSync(journal) || !readFileSync(journal, 'utf8').includes('Assigned task')) {
      if (child.exitCode !== null) throw new Error(`exp run exited with ${child.exitCode}`);
      await pause(5);
    }
    seconds.push((performance.now() - begin) / 1e3);
    megabytes.push(peakMemory(child.pid) / 1e6);
    for (let look = 0; i === 0 && look < looks; look++) {
      times['node -e 0'].push(timedRun(['-e', '0'], env, cwd));
      times['gpu-owner exp status'].push(timedRun([command, 'exp', 'status'], env, cwd));
    }
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGKILL');
    await ended;
    await pause(500);
  }
  const label = `${many.toLocaleString('en-US')} tasks`;
  return [
    {
      name: 'start',
      title: 'From the start of a sweep to its first command',
      unit: 's',
      rows: [{ label, series: { 'gpu-owner exp run': summarize(seconds) } }],
    },
    {
      name: 'memory',
      title: 'Peak memory until its first command',
      unit: 'MB',
      rows: [{ label, series: { 'gpu-owner exp run': summarize(megabytes) } }],
    },
    {
      name: 'status',
      title: 'Showing a sweep, from the start of the command to its end',
      unit: 'ms',
      base: 'node -e 0',
      rows: [{ label, series: summaries(times) }],
    },
  ];
}

function timedRun(words, env, cwd) {
  const start = performance.now();
  const { status } = spawnSync(process.execPath, words, { env, cwd, stdio: 'ignore' });
  if (status !== 0) throw new Error(`node ${words.join(' ')} exited with ${status}`);
  return performance.now() - start;
}

/** How long rows take to get into a table, as it grows. */
async function results({ directory, inMemory, log }, { rows: many }) {
  log(`a table grows to ${many} rows`);
  const { openQueue, ResultTables } = await bundled(`
    export { openQueue } from './experiments/queue/index.ts';
    export { ResultTables } from './experiments/results/result-tables.ts';`);
  const project = mkdtempSync(join(directory, 'table-'));
  // Getting results into the queue isn't what is measured, and needn't wait for a disk.
  const queue = await openQueue(`sqlite:${join(inMemory(), 'queue.db')}`, project);
  const spec = (i) => ({
    phase: 'exp1',
    outputDirectory: 'results_exp1',
    parameters: { dataset: 'mnist', width: i % 10, seed: i },
    command: { words: ['true'] },
  });
  await queue.enqueue(Array.from({ length: many }, (_, i) => spec(i)));
  const tables = new ResultTables(queue, project, () => {});
  const perRow = new Map();
  for (let rows = BATCH; rows <= many; rows += BATCH) {
    for (let i = 0; i < BATCH; i++) {
      const attempt = await queue.take({ name: 'gpu0', host: 'bench', pid: process.pid, gpus: [] });
      await queue.complete(attempt.token, { loss: 0.25, accuracy: i / BATCH, note: 'some text' });
    }
    const milliseconds = await timed(() => tables.sync());
    const at = Math.ceil((rows / many) * 5) * (many / 5);
    perRow.set(at, [...(perRow.get(at) ?? []), (milliseconds * 1e3) / BATCH]);
  }
  const nothingNew = [];
  for (let i = 0; i < 20; i++) nothingNew.push(await timed(() => tables.sync()));
  await tables.close();
  const first = [];
  for (let i = 0; i < 3; i++) {
    const again = new ResultTables(queue, project, () => {});
    first.push(await timed(() => again.sync()));
    await again.close();
  }
  await queue.close();
  const label = `${many.toLocaleString('en-US')} rows`;
  return [
    {
      name: 'rows',
      title: 'A row into a table of results, as it grows',
      unit: 'us',
      note: `${BATCH} rows at a time`,
      rows: [...perRow].map(([x, values]) => ({
        label: `up to ${x.toLocaleString('en-US')} rows`,
        x,
        series: { 'gpu-owner': summarize(values) },
      })),
      chart: 'lines',
      scale: 'linear',
    },
    {
      name: 'table',
      title: 'Reading a whole table',
      unit: 'ms',
      rows: [
        { label: `${label}, nothing new`, series: { 'gpu-owner': summarize(nothingNew) } },
        { label: `${label}, all read at start`, series: { 'gpu-owner': summarize(first) } },
      ],
    },
  ];
}

async function timed(act) {
  const begin = performance.now();
  await act();
  return performance.now() - begin;
}

const summaries = (times) =>
  Object.fromEntries(Object.entries(times).map(([name, values]) => [name, summarize(values)]));
