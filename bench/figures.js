// The figures of bench/README.md. Each has a title and `run(bench)`, which returns rows: see row(). Compared programs run
// alternately, so that a machine that gets slower for a while slows both.
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fair } from './fair.js';
import { leftovers, pause } from './leftovers.js';
import { beginProcessorTime, nameOf, usage } from './processes.js';
import { openWitness } from './witness.js';

const root = dirname(import.meta.dirname);
const built = process.env.GPU_OWNER_BUILD ?? join(root, 'build/Release');
const command = join(root, 'bin/gpu-owner.cjs');
const EMPTY = 'node -e 0';
/** The questions of a program that polls: which GPUs there are, and which processes compute on them. */
const QUERIES = [
  ['--query-gpu=index,uuid,memory.used', '--format=csv,noheader'],
  ['--query-compute-apps=gpu_uuid,pid,used_memory', '--format=csv,noheader'],
];
const POLL_MS = 1_000;

export const figures = {
  snapshot: { title: 'A snapshot of all GPUs', run: snapshot },
  claim: { title: 'A claim of a free GPU', run: claim },
  handover: { title: 'From the release of a GPU to the next holder', run: handOver },
  contention: { title: 'Claims and releases by processes that do nothing else', run: contention },
  start: { title: 'From start to end of a command', run: start },
  feel: { title: 'What a person feels, beside other queues', run: feel },
  waiting: { title: 'Waiting jobs', run: waiting },
  fair: { title: 'How users share GPUs', run: (bench) => fair(bench, { place, row, command }) },
};

/** Summarizes values: the median, the middle half as a measure of spread, and the time that 95 % of them keep. */
export function summarize(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
  const middle = sorted.length >> 1;
  const median = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return { n: sorted.length, median, low: at(0.25), high: at(0.75), p95: at(0.95) };
}

/** @param against [label, values] of what it is compared with @param target { text, met } */
function row(label, unit, values, { against, target } = {}) {
  return {
    label,
    unit,
    ...summarize(values),
    ...(against && { against: { label: against[0], ...summarize(against[1]) } }),
    ...(target && { target }),
  };
}

/** The environment of measured processes, and a witness. The machine is simulated, without latency, or the real one. */
function place(bench, name, gpus) {
  const directory = join(bench.directory, name);
  mkdirSync(join(directory, 'state'), { recursive: true });
  const { NODE_EXTRA_CA_CERTS: _, CUDA_VISIBLE_DEVICES: __, ...inherited } = process.env;
  const simulated = { GPU_OWNER_SIMULATE: String(gpus), GPU_OWNER_SIMULATE_DIR: directory };
  const env = {
    ...inherited,
    TMPDIR: bench.directory,
    XDG_STATE_HOME: join(directory, 'state'),
    GPU_OWNER_MACHINE_CONFIG: '/dev/null',
    ...(bench.driver === null ? simulated : { GPU_OWNER_LOCK_DIR: join(directory, 'locks') }),
  };
  if (bench.driver === null) {
    execFileSync(join(built, 'gpu-owner-simulator'), ['set', 'latency=off'], { env });
  }
  const witness = openWitness(directory);
  return { env, witness, claimant: (placeholder = 'none') => openClaimant(env, witness.path, placeholder) };
}

/** A claimant.js. */
async function openClaimant(env, witness, placeholder) {
  await untilStopped();
  const child = spawn(process.execPath, [join(import.meta.dirname, 'claimant.js'), witness, placeholder], {
    env,
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const ended = new Promise((resolve) => child.once('exit', (...how) => resolve(how)));
  const heard = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error(`a claimant has ended: ${(await ended).join(' ')}`);
    return value;
  };
  const tell = (line) => child.stdin.write(`${line}\n`);
  const ask = (line) => {
    tell(line);
    return heard();
  };
  await heard(); // ready
  return {
    pid: child.pid,
    ask,
    tell,
    heard,
    at: async (line) => Number((await (line === undefined ? heard() : ask(line))).split(' ')[1]),
    kill: () => child.kill('SIGKILL'),
    end: () => {
      child.stdin.end();
      return ended;
    },
  };
}

let isStopped = false;

/** Has benchmarks start nothing more. */
export function stop() {
  isStopped = true;
}

/** Lets signals arrive. Never resolves once benchmarks are stopped. */
export async function untilStopped() {
  await new Promise((resolve) => {
    setImmediate(() => isStopped || resolve());
  });
}

/** The time of a program that is started for it, in ms, and what it prints. */
async function timed(words, env) {
  await untilStopped();
  const begin = performance.now();
  const { status, stdout, stderr } = spawnSync(words[0], words.slice(1), { env, encoding: 'utf8' });
  const time = performance.now() - begin;
  if (status !== 0) throw new Error(`${words.join(' ')} exited with ${status}: ${stderr}`);
  return { time, stdout };
}

/** Asks as programs do that poll nvidia-smi. Without NVIDIA's driver, the simulated driver's nvidia-smi answers. */
async function poll(bench, env, queries = QUERIES) {
  const program = bench.driver === null ? join(built, 'simulator/bin/nvidia-smi') : 'nvidia-smi';
  const answers = [];
  for (const query of queries) answers.push(await timed([program, ...query], env));
  return {
    time: answers.reduce((sum, { time }) => sum + time, 0),
    isBusy: answers.at(-1).stdout.trim() !== '',
  };
}

const smi = (bench) => (bench.driver === null ? 'nvidia-smi (simulated driver)' : 'nvidia-smi');
const rounds = (bench, quick, full) => Array.from({ length: bench.quick ? quick : full }, (_, i) => i);

async function snapshot(bench) {
  return besidePolls(bench, 'look', 'getGPUsSync(), in a running program', QUERIES.slice(0, 1));
}

async function claim(bench) {
  return besidePolls(bench, 'claim', 'claim and release, in a running program', QUERIES);
}

async function besidePolls(bench, what, label, queries) {
  const { env, claimant } = place(bench, what, 8);
  const program = await claimant();
  const ours = [];
  const polls = [];
  for (const _ of rounds(bench, 1, 5)) {
    ours.push(...JSON.parse(await program.ask(`${what} 200`)));
    for (const __ of rounds(bench, 3, 20)) polls.push((await poll(bench, env, queries)).time);
  }
  await program.end();
  const against = [`${smi(bench)}, ${queries.length === 1 ? 'asked once' : 'asked twice'}`, polls];
  return [row(label, 'ms', ours, { against })];
}

/** Programs that poll every second, and claimants in the wait queue: alone, after kill -9, and in front of others. */
async function handOver(bench) {
  const { env, witness, claimant } = place(bench, 'handover', 8);
  const [first, second, visible] = [await claimant(), await claimant(), await claimant('auto')];
  const released = await passOn(bench, first, second);
  const polled = await freeSeenByPolls(bench, env, visible);
  const killed = await afterKill(bench, witness, claimant, first);
  const count = bench.quick ? 2 : 100;
  // Requests for all GPUs wait as long as one claimant holds GPU 0 and the next waits for it.
  await first.at('take');
  for (let i = 0; i < count; i++) {
    await timed([command, 'submit', '--preemptible', '-n', '8', 'true'], env);
  }
  await first.at('give');
  const crowded = await passOn(bench, first, second);
  const { holds } = witness.check();
  await Promise.all([first, second, visible].map((each) => each.end()));
  const limit = { text: 'at most 2 ms', met: summarize(released).median <= 2 };
  return [
    row('to the next waiter', 'ms', released, {
      against: [`a program that asks ${smi(bench)} every second`, polled],
      target: limit,
    }),
    row(`to the next waiter, in front of ${count} others`, 'ms', crowded),
    row('from kill -9 of a Node.js program to the next waiter', 'ms', killed),
    row('holds that the witness saw, never two at once', '', [holds]),
  ];
}

const REST_MS = 50;

async function passOn(bench, first, second) {
  let [holder, waiter] = [first, second];
  const times = [];
  await holder.at('take');
  for (const _ of rounds(bench, 5, 60)) {
    waiter.tell('take');
    await pause(REST_MS);
    const released = await holder.at('give');
    times.push((await waiter.at()) - released);
    [holder, waiter] = [waiter, holder];
  }
  await holder.at('give');
  return times;
}

async function freeSeenByPolls(bench, env, holder) {
  const times = [];
  for (const i of rounds(bench, 2, 20)) {
    await holder.at('take');
    let released = null;
    // The release comes at any time between two polls.
    const release = pause(POLL_MS * (0.5 + ((i * 7) % 20) / 20)).then(async () => {
      released = await holder.at('give');
    });
    while ((await poll(bench, env)).isBusy || released === null) await pause(POLL_MS);
    const seen = Number(process.hrtime.bigint()) / 1e6;
    await release;
    times.push(seen - released);
  }
  return times;
}

async function afterKill(bench, witness, claimant, waiter) {
  const times = [];
  for (const _ of rounds(bench, 2, 20)) {
    const holder = await claimant();
    await holder.at('take');
    waiter.tell('take');
    await pause(REST_MS);
    witness.killed(holder.pid);
    const killed = Number(process.hrtime.bigint()) / 1e6;
    holder.kill();
    times.push((await waiter.at()) - killed);
    await waiter.at('give');
  }
  return times;
}

const SLICE_MS = 1_000;

async function contention(bench) {
  const { witness, claimant } = place(bench, 'contention', 8);
  const counts = bench.quick ? [1, 4] : [1, 8, 64];
  const all = [];
  while (all.length < counts.at(-1)) all.push(await claimant());
  const rows = [];
  for (const count of counts) {
    const rates = [];
    for (const _ of rounds(bench, 1, 5)) {
      const end = Number(process.hrtime.bigint()) / 1e6 + SLICE_MS;
      const made = await Promise.all(all.slice(0, count).map((each) => each.ask(`contend ${end}`)));
      rates.push(made.reduce((sum, claims) => sum + Number(claims), 0) / (SLICE_MS / 1_000));
    }
    rows.push(row(`${count} ${count === 1 ? 'process' : 'processes'}, 8 GPUs`, 'per second', rates));
  }
  await Promise.all(all.map((each) => each.end()));
  return [...rows, row('holds that the witness saw, never two at once', '', [witness.check().holds])];
}

/** Commands beside an empty Node.js program, in turn. @param commands label -> words */
async function besideNode(bench, env, commands, target = () => undefined) {
  const times = new Map([EMPTY, ...Object.keys(commands)].map((label) => [label, []]));
  const words = { [EMPTY]: [process.execPath, '-e', '0'], ...commands };
  // A first round, which isn't counted, fills caches.
  for (const i of rounds(bench, 3, 61)) {
    for (const [label, each] of Object.entries(words)) {
      const { time } = await timed(each, env);
      if (i > 0) times.get(label).push(time);
    }
  }
  const empty = times.get(EMPTY);
  return Object.keys(commands).map((label) => {
    const over = summarize(times.get(label).map((time, i) => time - empty[i])).median;
    return row(label, 'ms', times.get(label), { against: [EMPTY, empty], target: target(label, over) });
  });
}

async function start(bench) {
  const { env } = place(bench, 'start', 8);
  const commands = {
    'gpu-owner run true': [command, 'run', 'true'],
    'gpu-owner submit true': [command, 'submit', 'true'],
    'gpu-owner status': [command, 'status'],
  };
  const rows = await besideNode(bench, env, commands, (label, over) =>
    label === 'gpu-owner run true' ? { text: 'at most 20 ms over `node -e 0`', met: over <= 20 } : undefined,
  );
  return [...rows, ...claimInPython(bench, env)];
}

const PYTHON_CLAIMS = `
import json, sys, time
def measure(act):
    began = time.perf_counter()
    result = act()
    return 1_000 * (time.perf_counter() - began), result
imported, gpu_owner = measure(lambda: __import__('gpu_owner'))
times = []
for _ in range(int(sys.argv[1])):
    taken, claim = measure(gpu_owner.claim)
    times.append(taken)
    claim.release()
print(json.dumps([imported, times]))`;

/** The first claim, which loads Python's own modules as well, counts. */
function claimInPython(bench, env) {
  const output = execFileSync('python3', ['-c', PYTHON_CLAIMS, String(rounds(bench, 2, 30).length)], {
    env: { ...env, PYTHONPATH: join(root, 'python'), GPU_OWNER_COMMAND: command },
  });
  const [imported, times] = JSON.parse(output);
  const limit = { text: 'at most 100 ms', met: summarize(times).median <= 100 };
  return [
    row('Python: import gpu_owner', 'ms', [imported]),
    row('Python: claim(), in a running program', 'ms', times, { target: limit }),
  ];
}

/** `date` takes 1 ms, the same in all of them. */
const STAMPED_JOB = 'date +%s.%N >"$1.begin"; sleep "$2"; exec date +%s.%N >"$1.end"';
const FEEL_TIMEOUT_MS = 60_000;
const NEW_WAITER_S = 1;
const OLD_WAITER_S = 12;

/** Opens a queue with one GPU: runs a command there, and tells when it began and ended. @param words that come before the command */
function openQueue(words, env, directory) {
  const script = join(directory, 'job.sh');
  writeFileSync(script, STAMPED_JOB);
  let jobs = 0;
  /** The time that a job has written, in ms since 1970. */
  const stamp = async (path) => {
    for (const end = performance.now() + FEEL_TIMEOUT_MS; performance.now() < end; await pause(5)) {
      const text = existsSync(path) ? readFileSync(path, 'latin1') : '';
      if (text.endsWith('\n')) return Number(text) * 1_000;
    }
    throw new Error(`${words.join(' ')}: there is no ${path}`);
  };
  return async (seconds) => {
    await untilStopped();
    const job = join(directory, `job-${++jobs}`);
    const [started, clock] = [Date.now(), performance.now()];
    const child = spawn(words[0], [...words.slice(1), 'sh', script, job, String(seconds)], {
      env,
      stdio: 'ignore',
    });
    const returned = new Promise((resolve, reject) => {
      child.once('error', reject).once('exit', () => resolve(performance.now() - clock));
    });
    return { started, returned, began: () => stamp(`${job}.begin`), ended: () => stamp(`${job}.end`) };
  };
}

/** Other queues on a machine with one GPU: the words before a command, and their variables, or why they can't be measured here. */
const RIVALS = {
  'task-spooler': (directory) =>
    spawnSync('tsp', ['-V']).error === undefined
      ? { words: ['tsp', '-n'], variables: { TS_SOCKET: join(directory, 'socket') } }
      : 'there is no tsp',
  gflow: () => 'after its first job it takes a simulated GPU for used',
  canhazgpu: () => 'PyPI has no such package',
  'GPU task-spooler': () => 'Debian has no such package',
};

async function feel(bench) {
  const queues = {};
  const holders = [];
  for (const name of ['run', 'submit']) {
    for (const leases of [1, 4]) {
      const room = `feel-${name}-${leases}`;
      const { env } = place(bench, room, leases);
      if (leases > 1) holders.push(await hold(env, leases - 1));
      queues[leases === 1 ? name : `${name}, ${leases} leases`] = openQueue(
        [command, name, '--'],
        env,
        join(bench.directory, room),
      );
    }
  }
  for (const [name, find] of Object.entries(RIVALS)) {
    const directory = join(bench.directory, `feel-${name}`);
    const rival = find(directory);
    if (typeof rival === 'string') {
      console.log(`  ${name} isn't compared: ${rival}`);
      continue;
    }
    const { env } = place(bench, `feel-${name}`, 1);
    queues[name] = openQueue(rival.words, { ...env, ...rival.variables }, directory);
  }
  const times = Object.fromEntries(
    Object.keys(queues).map((name) => [name, { begin: [], back: [], fresh: [], old: [] }]),
  );
  const single = Object.entries(queues).filter(([name]) => !name.endsWith('leases'));
  // A first round, which isn't counted, fills caches.
  for (const i of rounds(bench, 2, 31)) {
    for (const [name, start] of single) {
      const job = await start(0);
      const begin = (await job.began()) - job.started;
      const back = await job.returned;
      await job.ended();
      await pause(REST_MS); // until the GPU is free
      if (i > 0) times[name].begin.push(begin);
      if (i > 0) times[name].back.push(back);
    }
  }
  const passOn = async (start, seconds) => {
    const first = await start(seconds);
    await first.began();
    const second = await start(0);
    const [ended, began] = [await first.ended(), await second.began()];
    await second.ended();
    await second.returned;
    return began - ended;
  };
  // All queues at the same time, as waiting takes long, and one after the other at their ends.
  for (const [key, seconds, gap, count] of [
    ['fresh', NEW_WAITER_S, 500, 31],
    ['old', OLD_WAITER_S, 1_000, 15],
  ]) {
    for (const _ of rounds(bench, 1, count)) {
      const passing = Object.entries(queues).map(async ([name, start], i) => {
        await pause(i * gap);
        times[name][key].push(await passOn(start, bench.quick ? NEW_WAITER_S : seconds));
      });
      await Promise.all(passing);
    }
  }
  for (const holder of holders) holder.kill('SIGKILL');
  const rival = (key) => {
    const other = times['task-spooler'];
    return other && { against: ['task-spooler', other[key]] };
  };
  const limit = (values) => {
    const { median, p95 } = summarize(values);
    return { text: 'at most 8 ms, 15 for 95 %', met: median <= 8 && p95 <= 15 };
  };
  const passes = { fresh: `${NEW_WAITER_S} s`, old: `${OLD_WAITER_S} s` };
  return [
    row('run: until the command begins', 'ms', times.run.begin),
    row('submit: until the command begins', 'ms', times.submit.begin, rival('begin')),
    row('submit: until the prompt returns', 'ms', times.submit.back, rival('back')),
    ...Object.entries(passes).flatMap(([key, seconds]) =>
      Object.keys(queues)
        .filter((name) => !Object.hasOwn(RIVALS, name))
        .map((name) => {
          const values = times[name][key];
          const label = `${name}: from the end of a job to the next, which has waited for ${seconds}`;
          return row(label, 'ms', values, { ...(name === 'submit' && rival(key)), target: limit(values) });
        }),
    ),
  ];
}

/** A process that holds GPUs until it is killed. */
async function hold(env, gpus) {
  const words = ['hold', '-n', String(gpus), '--placeholder', 'none'];
  const holder = spawn(command, words, { env, stdio: 'pipe' });
  await new Promise((resolve, reject) => {
    holder.stdout.once('data', resolve);
    holder.once('exit', (code) => reject(new Error(`gpu-owner hold exited with ${code}`)));
  });
  return holder;
}

const WAITER = 'gpu-owner-wait';
const REST_TIMEOUT_MS = 5 * 60_000;
const WAITER_MB = 2;
const WAKEUPS_PER_MINUTE = 12;
const STOPPED_MS = 4_000;

/** Stops all waiters for a while, as a busy machine does. */
async function afterStop(pids, seconds) {
  for (const pid of pids) process.kill(pid, 'SIGSTOP');
  await pause(STOPPED_MS);
  for (const pid of pids) process.kill(pid, 'SIGCONT');
  const woken = new Set();
  for (const end = performance.now() + seconds * 1_000; performance.now() < end; await pause(200)) {
    for (const pid of pids) if (nameOf(pid) !== WAITER) woken.add(pid);
  }
  const target = { text: 'at most 4', met: woken.size <= 4 };
  return row('of them that start Node.js after all were stopped for 4 s', '', [woken.size], { target });
}

async function waiting(bench) {
  const { env } = place(bench, 'waiting', 8);
  const [count, seconds] = bench.quick ? [5, 1] : [600, 60];
  const holder = await hold(env, 8);
  for (let i = 0; i < count; i++) await timed([command, 'submit', '-n', String(1 + (i % 8)), 'true'], env);
  const waiters = () => leftovers(bench.directory).filter((pid) => nameOf(pid) === WAITER);
  // The first in the queue stays in Node.js.
  for (const end = performance.now() + REST_TIMEOUT_MS; waiters().length < count - 1; await pause(200)) {
    if (performance.now() > end) throw new Error(`${waiters().length} of ${count} jobs wait`);
  }
  const pids = waiters();
  const first = leftovers(bench.directory).find((pid) => nameOf(pid) === 'node');
  const before = pids.map((pid) => usage(pid));
  const times = beginProcessorTime(pids);
  await pause(seconds * 1_000);
  const spent = times();
  const wakeups = pids.map((pid, i) => usage(pid).wakeups - before[i].wakeups);
  const isCalm = summarize(wakeups).median <= (WAKEUPS_PER_MINUTE * seconds) / 60;
  const largest = Math.max(...before.map(({ own }) => own));
  const rows = [
    row(
      'memory of each that no other process shares',
      'MB',
      before.map(({ own }) => own),
      {
        target: { text: `at most ${WAITER_MB} MB in each`, met: largest <= WAITER_MB },
      },
    ),
    row('memory of the first in the queue, which keeps Node.js', 'MB', [usage(first).own]),
    row(
      'processor time of each, per minute',
      'ms',
      spent.map((ms) => (ms * 60) / seconds),
    ),
    row(
      'wake-ups of each, per minute',
      '',
      wakeups.map((number) => (number * 60) / seconds),
      { target: { text: `at most ${WAKEUPS_PER_MINUTE}`, met: isCalm } },
    ),
    await afterStop(pids, bench.quick ? 1 : 10),
    ...(await besideNode(bench, env, {
      [`gpu-owner queue, with ${count} waiting jobs`]: [command, 'queue'],
      [`gpu-owner jobs, with ${count} waiting jobs`]: [command, 'jobs'],
    })),
  ];
  holder.kill('SIGKILL');
  return rows;
}
