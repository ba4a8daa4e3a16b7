// A sweep of 240 tasks, of which 45 were done before by another program; four GPUs; killed with SIGKILL in the middle, and started
// again. At the end there is one row for each task: no more, no less.
//
//   node examples/demo-sweep.mjs          four simulated GPUs: runs anywhere, without a driver
//   node examples/demo-sweep.mjs --keep   leaves its directory there, to look around in
//
// Exits with 0 only if all that was true.
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { spawn, spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// A static import of a package that isn't installed would fail before the first one has said why.
const { parse } = await import('csv-parse/sync');

const GPU_OWNER = join(import.meta.dirname, '../bin/gpu-owner.cjs');
const TASKS = 240;
const DONE_BEFORE = 45;
const GPUS = 4;
const RUN = ['exp', 'run', '--simulate', `${GPUS}`, '--gpus', 'all', '--', 'python3', 'train.py'];

// A project and a simulated machine of our own, out of reach of settings that are meant for the real ones.
const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-sweep-'));
const project = join(directory, 'project');
const { CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, GPU_OWNER_LOCK_DIR, ...others } = process.env;
const env = {
  ...others,
  GPU_OWNER_SIMULATE_DIR: directory,
  GPU_OWNER_MACHINE_CONFIG: '/dev/null',
  XDG_CONFIG_HOME: directory,
};

const SEEDS = [42, 43, 44, 45, 46, 47, 48, 49, 50, 51];

/** Every task of examples/sweep/configs, written out by hand: nothing of this is gpu-owner's word. */
function expected() {
  const grid = [];
  const add = (dataset, width, depth, lr, augment) => {
    for (const seed of SEEDS) grid.push({ dataset, width_factor: width, depth, lr, augment, seed });
  };
  for (const width of [1, 2, 3, 4, 6, 8]) add('mnist', width, 2, 0.1, true);
  for (const dataset of ['cifar10', 'svhn', 'fashion']) {
    for (const lr of [0.3, 0.1, 0.03, 0.01]) add(dataset, 2, 2, lr, true);
  }
  for (const depth of [1, 2, 4, 8]) add('mnist', 1, depth, 0.03, true);
  for (const depth of [2, 4]) add('mnist', 1, depth, 0.03, false);
  return grid;
}

/** The same text for the same task, however a table spells its values. */
function identity(row) {
  const augment = /^(true|yes|on)$/i.test(String(row.augment));
  return [row.dataset, ...[row.width_factor, row.depth, row.lr].map(Number), augment, Number(row.seed)].join(
    ' ',
  );
}

/** As a script in Python would have written it: no `task_id`, True for yes. */
function writeRowsOfBefore() {
  const rows = expected().filter(({ dataset }) => dataset === 'cifar10' || dataset === 'svhn');
  const before = rows.slice(0, DONE_BEFORE);
  for (const dataset of ['cifar10', 'svhn']) {
    const lines = before
      .filter((row) => row.dataset === dataset)
      .map((row, i) => `${dataset},2,2,${row.lr},True,${row.seed},${(0.5 + i / 1000).toFixed(4)}`);
    mkdirSync(join(project, `results_exp2_${dataset}`));
    const head = 'dataset,width_factor,depth,lr,augment,seed,loss';
    writeFileSync(
      join(project, `results_exp2_${dataset}`, 'final_results.csv'),
      `${[head, ...lines].join('\n')}\n`,
    );
  }
}

function table(name) {
  const path = join(project, name, 'final_results.csv');
  return existsSync(path) ? parse(readFileSync(path, 'utf8'), { columns: true }) : [];
}

function rows() {
  return readdirSync(project)
    .filter((name) => name.startsWith('results_'))
    .flatMap(table);
}

function log() {
  const path = join(project, 'experiment_manager.log');
  return existsSync(path) ? readFileSync(path, 'utf8') : '';
}

function count(pattern) {
  return log().match(pattern)?.length ?? 0;
}

const COMPLETED = /Task \S+ completed by/g;
const ASSIGNED = /Assigned task \S+ to/g;

/** Starts the sweep; resolves when it has ended. @param killAfter how many tasks are completed when it is killed; null: it isn't */
async function run(killAfter) {
  console.log(`$ gpu-owner ${RUN.join(' ')}`);
  const child = spawn(GPU_OWNER, RUN, { cwd: project, env, stdio: ['ignore', 'inherit', 'inherit'] });
  let ended = false;
  const end = new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => {
      ended = true;
      resolve(code ?? signal);
    });
  });
  while (!ended && killAfter !== null) {
    if (count(COMPLETED) >= killAfter) {
      child.kill('SIGKILL');
      break;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const how = await end;
  if (process.stdout.isTTY) process.stdout.write('\x1b[?25h'); // a cursor that it had hidden
  console.log(`\nended: ${how}; rows in the tables: ${rows().length}\n`);
  return how;
}

let failures = 0;
function check(holds, what) {
  console.log(`${holds ? 'ok' : 'NOT TRUE'}: ${what}`);
  if (!holds) failures++;
}

try {
  cpSync(join(import.meta.dirname, 'sweep'), project, { recursive: true });
  writeRowsOfBefore();
  console.log(
    `${TASKS} tasks, ${rows().length} of them done before, ${GPUS} simulated GPUs. Project: ${project}\n`,
  );

  const first = await run(80);
  check(first === 'SIGKILL', 'it was killed in the middle');
  const second = await run(null);
  check(second === 0, 'started again, it ended with exit code 0');

  const all = rows().map(identity);
  check(all.length === TASKS, `the tables have ${TASKS} rows (${all.length})`);
  const tasks = new Set(expected().map(identity));
  check(
    new Set(all).size === TASKS && all.every((each) => tasks.has(each)),
    'each of them is another task of the sweep',
  );
  check(
    rows().every(({ loss }) => Number(loss) > 0),
    'each has its result',
  );
  const kept = table('results_exp2_cifar10').filter(({ loss }, i) => loss === (0.5 + i / 1000).toFixed(4));
  check(kept.length === 40, 'rows of before are as they were');
  check(count(/Generated 240 total tasks/g) > 0, 'the log says: Generated 240 total tasks');
  check(
    count(/Marked 45 tasks as already completed/g) > 0,
    'the log says: Marked 45 tasks as already completed',
  );
  const started = count(ASSIGNED);
  const most = TASKS - DONE_BEFORE + GPUS;
  check(
    started >= TASKS - DONE_BEFORE && started <= most,
    `nothing was repeated but what was running when it was killed: ${started} starts, at most ${most}`,
  );
  const status = spawnSync(GPU_OWNER, ['status', '--simulate', `${GPUS}`, '--json'], {
    env,
    encoding: 'utf8',
  });
  const free = JSON.parse(status.stdout).filter(({ state }) => state === 'free').length;
  check(free === GPUS, `all ${GPUS} GPUs are free again`);
} catch (error) {
  console.error(error.message);
  failures++;
} finally {
  if (process.argv.includes('--keep')) console.log(`\nto look around: cd ${project}`);
  else rmSync(directory, { recursive: true, force: true });
}
process.exitCode = failures === 0 ? 0 : 1;
