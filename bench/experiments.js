// What experiments cost: a task over its bare command, a sweep of 100,000 tasks, a look at it, and its table of results.
import { spawn, spawnSync } from 'node:child_process';
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { bundled, describe, environment, median, pause, peakMemory } from './measure.js';

const root = dirname(import.meta.dirname);
const command = join(root, 'dist/gpu-owner.cjs');
const COMMAND = ['true'];
const TASKS = 400;
const FEW = 20;
const REPETITIONS = 5;
const MANY = 100_000;
const LOOKS = 30;

export async function experiments() {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bench-'));
  const env = environment({
    GPU_OWNER_SIMULATE: '1',
    GPU_OWNER_SIMULATE_DIR: join(directory, 'machines'),
  });
  try {
    return {
      overhead: await overhead(directory, env),
      ...(await manyTasks(directory, env)),
      table: await table(directory),
    };
  } finally {
    rmSync(directory, { recursive: true });
  }
}

/** The same command, by us and by a loop, in turn. What a sweep costs once is taken out: the difference of two sweeps counts. */
async function overhead(directory, env) {
  const times = { bare: [], task: [] };
  for (let i = 0; i < REPETITIONS; i++) {
    times.bare.push((await bare(TASKS, directory)) / TASKS);
    const few = sweep(FEW, join(directory, `few-${i}`), env);
    const all = sweep(TASKS, join(directory, `all-${i}`), env);
    times.task.push((all - few) / (TASKS - FEW));
  }
  const more = median(times.task) - median(times.bare);
  console.log(
    `A task of a sweep: ${describe(times.task, 'ms', 2)}, its command alone ${describe(times.bare, 'ms', 2)}: ` +
      `${more.toFixed(2)} ms more`,
  );
  return { bare: median(times.bare), task: median(times.task) };
}

async function bare(count, directory) {
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
async function manyTasks(directory, env) {
  const seconds = [];
  const megabytes = [];
  const looks = { 'node -e 0': [], 'exp status': [] };
  for (let i = 0; i < 3; i++) {
    const cwd = mkdtempSync(join(directory, 'many-'));
    const args = ['exp', 'run', '--gpus', '1', '--grid', `i=1..${MANY}`, '--', 'sleep', '1000'];
    const begin = performance.now();
    const child = spawn(process.execPath, [command, ...args], { env, cwd, stdio: 'ignore' });
    const log = join(cwd, 'experiment_manager.log');
    while (!existsSync(log) || !readFileSync(log, 'utf8').includes('Assigned task')) {
      if (child.exitCode !== null) throw new Error(`exp run exited with ${child.exitCode}`);
      await pause(5);
    }
    seconds.push((performance.now() - begin) / 1e3);
    megabytes.push(peakMemory(child.pid) / 1e6);
    for (let look = 0; i === 0 && look < LOOKS; look++) {
      for (const [name, words] of [
        ['node -e 0', ['-e', '0']],
        ['exp status', [command, 'exp', 'status']],
      ]) {
        const start = performance.now();
        const { status } = spawnSync(process.execPath, words, { env, cwd, stdio: 'ignore' });
        if (status !== 0) throw new Error(`${name} exited with ${status}`);
        looks[name].push(performance.now() - start);
      }
    }
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGKILL');
    await ended;
    await pause(500);
  }
  console.log(
    `${MANY.toLocaleString('en')} tasks, from start to the first command: ${describe(seconds, 's', 2)}, ` +
      `peak memory ${describe(megabytes, 'MB', 0)}`,
  );
  const over = median(looks['exp status']) - median(looks['node -e 0']);
  console.log(
    `exp status at that size: ${describe(looks['exp status'], 'ms')}, ${over.toFixed(1)} ms over node -e 0`,
  );
  return {
    seconds: median(seconds),
    megabytes: median(megabytes),
    status: median(looks['exp status']),
    node: median(looks['node -e 0']),
  };
}

/** How long rows take to get into a table, as it grows. */
async function table(directory) {
  const { openQueue, ResultTables } = await bundled(`
    export { openQueue } from './experiments/queue/open.ts';
    export { ResultTables } from './experiments/results/tables.ts';`);
  const project = mkdtempSync(join(directory, 'table-'));
  const queue = await openQueue(null, project);
  const spec = (i) => ({
    phase: 'exp1',
    outputDirectory: 'results_exp1',
    parameters: { dataset: 'mnist', width: i % 10, seed: i },
    command: { words: ['true'] },
  });
  await queue.enqueue(Array.from({ length: MANY }, (_, i) => spec(i)));
  const tables = new ResultTables(queue, project, () => {});
  const perRow = new Map();
  const batch = 250;
  for (let rows = batch; rows <= MANY; rows += batch) {
    for (let i = 0; i < batch; i++) {
      const attempt = await queue.take({ worker: 'gpu0', host: 'bench', pid: process.pid, gpus: [] });
      await queue.complete(attempt.token, { loss: 0.25, accuracy: i / batch, note: 'some text' });
    }
    const begin = performance.now();
    await tables.sync();
    const at = Math.ceil(rows / 10_000) * 10_000;
    if (!perRow.has(at)) perRow.set(at, []);
    perRow.get(at).push(((performance.now() - begin) * 1e3) / batch);
  }
  const idle = await timed(() => tables.sync());
  await tables.close();
  const again = new ResultTables(queue, project, () => {});
  const first = await timed(() => again.sync());
  await again.close();
  await queue.close();
  const at = (rows) => describe(perRow.get(rows), 'us');
  console.log(
    `A row into a table, ${batch} at a time: ${at(10_000)} up to 10,000 rows, ${at(MANY)} up to 100,000; ` +
      `nothing new at 100,000 rows: ${idle.toFixed(2)} ms; reading all of them at start: ${first.toFixed(0)} ms`,
  );
  return { at10000: median(perRow.get(10_000)), at100000: median(perRow.get(MANY)), idle, first };
}

async function timed(act) {
  const begin = performance.now();
  await act();
  return performance.now() - begin;
}
