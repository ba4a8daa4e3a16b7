// Six workers start at once on a machine with four GPUs: four run, each on a GPU of its own, and two are told that all are
// taken. Then a worker is killed with SIGKILL, and its GPU goes to the next one at once.
//
//   node examples/six-workers.mjs          four simulated GPUs: runs anywhere, without a driver
//   node examples/six-workers.mjs --real   the GPUs of this machine that are free, and two workers more than that
//
// Exits with 0 only if all that was true.
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const GPU_OWNER = join(import.meta.dirname, '../bin/gpu-owner.cjs');
const NOT_AVAILABLE = 75;
const real = process.argv.includes('--real');

// A simulated machine of our own, out of reach of settings that are meant for the real one.
const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-example-'));
const { CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, GPU_OWNER_LOCK_DIR, ...others } = process.env;
// So that no worker warns of one that decides for more than 2 s, as on a busy machine.
const configuration = join(directory, 'machine.yaml');
writeFileSync(configuration, 'lockTimeout: 1m\n', { mode: 0o644 });
const env = real
  ? process.env
  : {
      ...others,
      GPU_OWNER_SIMULATE_DIR: directory,
      GPU_OWNER_MACHINE_CONFIG: configuration,
      XDG_CONFIG_HOME: directory,
    };
const simulate = real ? [] : ['--simulate', '4'];

/** Starts a worker; resolves when it works, or has ended because it got no GPU. */
function startWorker(number) {
  const command = ['run', ...simulate, '--no-wait', '--', 'sh', 'worker.sh', String(number)];
  const child = spawn(GPU_OWNER, command, { cwd: import.meta.dirname, env, stdio: 'pipe' });
  const worker = { number, child, pid: null, gpu: null, complaint: '', ended: null };
  child.stdin.on('error', () => {}); // the worker may have ended
  child.stderr.on('data', (text) => {
    worker.complaint += text;
  });
  worker.ended = new Promise((resolve) => child.once('close', (code, signal) => resolve(code ?? signal)));
  const working = new Promise((resolve) => {
    createInterface(child.stdout).once('line', (line) => {
      [worker.pid, worker.gpu] = line.split(' ');
      resolve();
    });
  });
  return Promise.race([working, worker.ended]).then(() => worker);
}

function gpus() {
  const { stdout, stderr, status } = spawnSync(GPU_OWNER, ['status', ...simulate, '--json'], {
    env,
    encoding: 'utf8',
  });
  if (status !== 0) throw new Error(stderr.trim());
  return JSON.parse(stdout);
}

function indexOf(uuid) {
  return machine.find((gpu) => gpu.uuid === uuid)?.index ?? '?';
}

let failures = 0;
function check(holds, what) {
  console.log(`${holds ? 'ok' : 'NOT TRUE'}: ${what}`);
  if (!holds) failures++;
}

let machine = [];
let workers = [];
try {
  machine = gpus();
  const free = machine.filter(({ state }) => state === 'free').length;
  if (free === 0) throw new Error('no GPU is free; see gpu-owner status');
  const count = free + 2;
  console.log(`${free} ${real ? 'free' : 'simulated'} GPUs. Starting ${count} workers at once:\n`);

  workers = await Promise.all(Array.from({ length: count }, (_, i) => startWorker(i + 1)));
  const running = workers.filter(({ gpu }) => gpu !== null);
  const refused = workers.filter(({ gpu }) => gpu === null);
  for (const { number, gpu, pid } of running)
    console.log(`worker ${number} runs on GPU ${indexOf(gpu)} (pid ${pid})`);
  for (const worker of refused) {
    worker.code = await worker.ended;
    const [told] = worker.complaint.split('\n');
    console.log(`worker ${worker.number} ended with exit code ${worker.code}: ${told}`);
  }

  console.log('\n$ gpu-owner status');
  console.log(spawnSync(GPU_OWNER, ['status', ...simulate], { env, encoding: 'utf8' }).stdout);

  check(running.length === free, `${free} workers run`);
  check(new Set(running.map(({ gpu }) => gpu)).size === running.length, 'each of them on a GPU of its own');
  check(
    refused.length === 2 && refused.every(({ code }) => code === NOT_AVAILABLE),
    `two were told that all are taken (exit code ${NOT_AVAILABLE})`,
  );

  const victim = running[0];
  process.kill(Number(victim.pid), 'SIGKILL');
  const end = await victim.ended;
  const killed = performance.now();
  console.log(
    `\nkill -9 ${victim.pid}: worker ${victim.number} is gone (exit code ${end}). Starting another one:`,
  );
  const next = await startWorker(count + 1);
  const milliseconds = Math.round(performance.now() - killed);
  workers.push(next);
  if (next.gpu === null) console.log(next.complaint);
  else console.log(`worker ${next.number} runs on GPU ${indexOf(next.gpu)}, ${milliseconds} ms later`);
  check(next.gpu === victim.gpu, 'the killed worker had freed its GPU at once');

  for (const { child } of workers) child.stdin.end();
  await Promise.all(workers.map(({ ended }) => ended));
  const left = gpus().filter(({ state }) => state === 'free').length;
  check(left === free, `all ${free} GPUs are free again`);
} catch (error) {
  console.error(error.message);
  failures++;
} finally {
  for (const { child } of workers) child.stdin.end();
  await Promise.all(workers.map(({ ended }) => ended));
  rmSync(directory, { recursive: true, force: true });
}
process.exitCode = failures === 0 ? 0 : 1;
