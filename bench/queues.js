// The queue of experiments on Redis beside BullMQ used directly: bringing tasks in, and claiming and completing them. Also SQLite.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { buildSync } from 'esbuild';
import { describe, median } from './measure.js';

const root = dirname(import.meta.dirname);
const require = createRequire(import.meta.url);
const TASKS = 20_000;
const CLAIMS = 4_000;
const ROUNDS = 5;

export async function queues() {
  if (spawnSync('redis-server', ['--version']).status !== 0) {
    console.log('redis-server is not installed: queues are not measured\n');
    return null;
  }
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bench-'));
  const socket = join(directory, 'redis.sock');
  const words = [
    '--dir',
    directory,
    '--port',
    '0',
    '--unixsocket',
    socket,
    '--appendonly',
    'yes',
    '--save',
    '',
  ];
  const redis = spawn('redis-server', words, { stdio: 'ignore' });
  try {
    const { openQueue } = load(directory);
    await pause(500);
    const figures = {};
    const note = (name, rate) => {
      figures[name] ??= [];
      figures[name].push(rate);
    };
    for (let round = 0; round < ROUNDS; round++) {
      const [enqueued, claimed] = await direct(socket, `direct-${round}`);
      note('BullMQ directly, enqueue', enqueued);
      note('BullMQ directly, claim + complete', claimed);
      for (const [name, url] of [
        ['gpu-owner on Redis', `redis+unix://${socket}?project=ours-${round}`],
        ['gpu-owner on SQLite', `sqlite:${directory}/${round}.db`],
      ]) {
        const queue = await openQueue(url, directory);
        const [own, ownClaimed] = await ours(queue);
        note(`${name}, enqueue`, own);
        note(`${name}, claim + complete`, ownClaimed);
        await queue.close();
      }
    }
    console.log(
      `Queues, ${TASKS} tasks in, ${CLAIMS} claimed and completed one after the other, per second:`,
    );
    for (const [name, rates] of Object.entries(figures))
      console.log(`  ${name}: ${describe(rates, '/s', 0)}`);
    for (const what of ['enqueue', 'claim + complete']) {
      const factor =
        median(figures[`BullMQ directly, ${what}`]) / median(figures[`gpu-owner on Redis, ${what}`]);
      console.log(`  BullMQ directly takes 1, gpu-owner ${factor.toFixed(2)} (${what})`);
    }
    console.log();
    return figures;
  } finally {
    redis.kill('SIGKILL');
    rmSync(directory, { recursive: true, force: true });
  }
}

function* tasks() {
  for (let number = 0; number < TASKS; number++) {
    const parameters = { dataset: 'mnist', width: number, lr: number / 7, seed: number % 3 };
    yield {
      phase: 'exp1',
      outputDirectory: 'results',
      parameters,
      command: { words: ['python3', 'train.py', '--width', String(number)] },
    };
  }
}

/** As its manual has it, with what a task needs: durable, an id against doubles, a priority. */
async function direct(socket, name) {
  const { Queue, Worker } = require('bullmq');
  const { Redis } = require('ioredis');
  const connection = new Redis(socket, { maxRetriesPerRequest: null });
  const queue = new Queue(name, { connection });
  const worker = new Worker(name, null, { connection, lockDuration: 60_000, autorun: false });
  await worker.waitUntilReady();
  let started = performance.now();
  const batch = [];
  for (const task of tasks()) {
    const id = `t-${task.parameters.width.toString(16).padStart(64, '0')}`;
    batch.push({ name: task.phase, data: task, opts: { jobId: id, priority: 1, attempts: 3 } });
    if (batch.length === 500) await queue.addBulk(batch.splice(0));
  }
  const enqueued = TASKS / ((performance.now() - started) / 1000);
  started = performance.now();
  for (let number = 0; number < CLAIMS; number++) {
    const job = await worker.getNextJob(`token-${number}`, { block: false });
    await job.moveToCompleted({ accuracy: 0.5 }, job.token, false);
  }
  const claimed = CLAIMS / ((performance.now() - started) / 1000);
  await worker.close();
  await queue.close();
  connection.disconnect();
  return [enqueued, claimed];
}

async function ours(queue) {
  const taker = { worker: 'gpu0', host: 'here', pid: process.pid, gpus: ['GPU-0'] };
  let started = performance.now();
  await queue.enqueue(tasks());
  const enqueued = TASKS / ((performance.now() - started) / 1000);
  started = performance.now();
  for (let number = 0; number < CLAIMS; number++) {
    const { token } = await queue.take(taker);
    await queue.complete(token, { accuracy: 0.5 });
  }
  return [enqueued, CLAIMS / ((performance.now() - started) / 1000)];
}

/** The library has no queues: they are the command's. */
function load(directory) {
  const outfile = join(directory, 'queues.cjs');
  buildSync({
    entryPoints: [join(root, 'lib/experiments/queue/open.ts')],
    outfile,
    bundle: true,
    platform: 'node',
    format: 'cjs',
    external: ['bullmq', 'ioredis', '@photostructure/sqlite'],
    define: {
      'import.meta.dirname': JSON.stringify(join(root, 'dist')),
      'import.meta.filename': JSON.stringify(join(root, 'dist/queues.cjs')),
    },
    logLevel: 'error',
  });
  return require(outfile);
}
