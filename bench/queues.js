// The queue of experiments on Redis beside BullMQ used directly: bringing tasks in, and claiming and completing them. Also SQLite.
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { bundled, pause, summarize } from './measure.js';

const require = createRequire(import.meta.url);
/** Claims: of these tasks, and as many again by eight at once. */
const FULL = { tasks: 4_000, claims: 800, rounds: 5 };
const QUICK = { tasks: 400, claims: 80, rounds: 2 };
const AT_ONCE = 8;
const LIMIT = 1.2;

const KINDS = [
  { key: 'enqueue', label: 'bringing tasks in', per: 'tasks' },
  { key: 'one', label: 'claim and complete, one after the other', per: 'claims' },
  { key: 'eight', label: `claim and complete, ${AT_ONCE} at once`, per: 'claims' },
];

const OURS = 'gpu-owner';
const DIRECT = 'BullMQ';
const SQLITE = 'gpu-owner on SQLite';

export const queues = {
  title: 'The queue of experiments',
  question:
    'What does a task cost on Redis, compared with BullMQ used directly with the same options and server?',
  async run(bench) {
    if (spawnSync('redis-server', ['--version']).status !== 0) {
      bench.leaveOut('the queue of experiments', 'redis-server is not installed');
      return [];
    }
    const server = await startRedis(bench.directory);
    try {
      return await measure(bench, server);
    } finally {
      server.stop();
    }
  },
};

async function measure(bench, server) {
  const { openQueue } = await bundled("export { openQueue } from './experiments/queue/index.ts';");
  let made = 0;
  const { rounds, ...counts } = bench.quick ? QUICK : FULL;
  const engines = {
    [DIRECT]: () => openDirectly(server.socket, `direct-${++made}`),
    [OURS]: async () =>
      asWorker(await openQueue(`redis+unix://${server.socket}?project=ours-${++made}`, bench.directory)),
    [SQLITE]: async () =>
      asWorker(await openQueue(`sqlite:${join(bench.directory, `${++made}.db`)}`, bench.directory)),
  };
  const figures = { wall: {}, client: {}, server: {} };
  const note = (what, kind, name, value) => {
    figures[what][kind] ??= {};
    figures[what][kind][name] ??= [];
    figures[what][kind][name].push(value);
  };
  // A round that isn't counted comes first: code that isn't compiled yet would be measured.
  for (let round = 0; round <= rounds; round++) {
    const names = Object.keys(engines);
    for (const name of round % 2 === 0 ? names : names.reverse()) {
      // Both begin with nothing: tables that grow cost something, too.
      await server.client.flushall();
      const engine = await engines[name]();
      const acts = {
        enqueue: () => engine.enqueue(tasks(counts.tasks)),
        one: () => claim(engine, counts.claims),
        eight: () =>
          Promise.all(Array.from({ length: AT_ONCE }, () => claim(engine, counts.claims / AT_ONCE))),
      };
      for (const { key, per } of KINDS) {
        const { wall, client, redis } = await cost(acts[key], server);
        if (round === 0) continue;
        note('wall', key, name, wall / counts[per]);
        note('client', key, name, client / counts[per]);
        if (name !== SQLITE) note('server', key, name, redis / counts[per]);
      }
      await engine.close();
    }
    bench.log(`round ${round} of ${rounds}`);
  }
  const table = (what, title, note) => ({
    name: what,
    title,
    unit: 'us',
    note,
    base: DIRECT,
    rows: KINDS.map(({ key, label }) => ({
      label,
      series: Object.fromEntries(
        Object.entries(figures[what][key]).map(([name, values]) => [name, summarize(values)]),
      ),
    })),
    targets: what === 'wall' ? KINDS.map((kind) => target(kind, figures.wall[kind.key])) : undefined,
  });
  return [
    table(
      'wall',
      'Time for a task',
      'Redis with appendonly yes, appendfsync everysec, on a socket; 500 tasks per operation when they are brought in; a claim and a completion with a result are an operation each; SQLite commits each with fsync',
    ),
    table('client', "CPU time of the client's process for a task", 'user and system'),
    table('server', 'CPU time of Redis for a task', 'user and system, with writing its file'),
  ];
}

/** Times of one round each, measured one after the other: a machine that is busy for a while is so for both. */
function target({ label }, { [OURS]: ours, [DIRECT]: direct }) {
  const value = summarize(ours.map((time, round) => time / direct[round])).median;
  return {
    text: `${label}: at most ${LIMIT} times BullMQ used directly`,
    value,
    limit: LIMIT,
    met: value <= LIMIT,
  };
}

/** In microseconds, of all of it. */
async function cost(act, server) {
  const before = await server.cpu();
  const cpu = process.cpuUsage();
  const started = performance.now();
  await act();
  const wall = (performance.now() - started) * 1000;
  const { user, system } = process.cpuUsage(cpu);
  return { wall, client: user + system, redis: (await server.cpu()) - before };
}

async function claim(engine, count) {
  for (let number = 0; number < count; number++) await engine.claim();
}

function* tasks(count) {
  for (let number = 0; number < count; number++) {
    yield {
      phase: 'exp1',
      outputDirectory: 'results',
      parameters: { dataset: 'mnist', width: number, lr: number / 7, seed: number % 3 },
      command: { words: ['python3', 'train.py', '--width', String(number), '--seed', String(number % 3)] },
    };
  }
}

/**
 * As its manual has it, with what a task needs: an id by its parameters, so that it isn't added twice; a priority, three attempts,
 * a lock of 60 s; completed jobs are kept.
 */
async function openDirectly(socket, name) {
  const { Queue, Worker } = require('bullmq');
  const { Redis } = require('ioredis');
  const connection = new Redis(socket, { maxRetriesPerRequest: null });
  const queue = new Queue(name, { connection });
  const worker = new Worker(name, null, {
    connection,
    name: 'gpu0',
    lockDuration: 60_000,
    maxStartedAttempts: 3,
    autorun: false,
  });
  await worker.waitUntilReady();
  let claims = 0;
  return {
    async enqueue(tasks) {
      const batch = [];
      for (const data of tasks) {
        const hash = createHash('sha256').update(JSON.stringify(data.parameters)).digest('hex');
        batch.push({ name: data.phase, data, opts: { jobId: `t-${hash}`, priority: 1, attempts: 3 } });
        if (batch.length === 500) await queue.addBulk(batch.splice(0));
      }
      await queue.addBulk(batch);
    },
    async claim() {
      const job = await worker.getNextJob(`token-${claims++}`, { block: false });
      await job.moveToCompleted({ accuracy: 0.5 }, job.token, false);
    },
    async close() {
      await worker.close();
      await queue.close();
      connection.disconnect();
    },
  };
}

function asWorker(queue) {
  const worker = { name: 'gpu0', host: 'here', pid: process.pid, gpus: ['GPU-0'] };
  return {
    enqueue: (tasks) => queue.enqueue(tasks),
    async claim() {
      const { token } = await queue.take(worker);
      await queue.complete(token, { accuracy: 0.5 });
    },
    close: () => queue.close(),
  };
}

async function startRedis(directory) {
  const { Redis } = require('ioredis');
  const home = join(directory, 'redis');
  mkdirSync(home);
  const socket = join(home, 'redis.sock');
  const settings = {
    dir: home,
    port: 0,
    unixsocket: socket,
    appendonly: 'yes',
    appendfsync: 'everysec',
    // A file that is written anew in the background would be measured with the next queue.
    'auto-aof-rewrite-percentage': 0,
    save: '',
  };
  const words = Object.entries(settings).flatMap(([name, value]) => [`--${name}`, String(value)]);
  const child = spawn('redis-server', words, { stdio: 'ignore' });
  const client = new Redis(socket, { lazyConnect: true, retryStrategy: () => null });
  client.on('error', () => {});
  for (let tries = 0; client.status !== 'ready'; tries++) {
    if (tries === 200) throw new Error('redis-server does not start');
    await client.connect().catch(() => pause(25));
  }
  return {
    socket,
    client,
    /** Used until now, in microseconds. */
    async cpu() {
      const info = await client.info('cpu');
      const seconds = (name) => Number(new RegExp(`^${name}:([\\d.]+)`, 'm').exec(info)[1]);
      return (seconds('used_cpu_user') + seconds('used_cpu_sys')) * 1e6;
    },
    stop() {
      client.disconnect();
      child.kill('SIGKILL');
    },
  };
}
