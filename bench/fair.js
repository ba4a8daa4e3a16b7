// How users share GPUs, in whole processes of several users. The witness's log says who had which GPU for how long.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  fchownSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { endLeftovers, pause } from './leftovers.js';

/** A job: notes had and gone of its GPUs, and sleeps between. Its number in the log is USER:PID. */
const JOB = `import os, sys, time
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
def note(what):
    at = time.monotonic_ns()
    gpus = os.environ['CUDA_VISIBLE_DEVICES'].split(',')
    os.write(log, ''.join(f'{os.getuid()}:{os.getpid()} {what} {at} {gpu}\\n' for gpu in gpus).encode())
note('had')
time.sleep(float(sys.argv[2]))
note('gone')`;
const [ALICE, BOB, CAROL, DAVE] = [60_001, 60_002, 60_003, 60_004];
/** How long jobs last, in s. */
const JOB_S = 0.3;
/** An hour of a day that is played, in s. */
const HOUR_S = 3;
const TIMEOUT_MS = 60_000;
/** How long a request takes to join. */
const JOIN_MS = 2_000;
/** A ledger of this size gets no more lines; see lib/usage/directory.ts. */
const LEDGER_BYTES = 32 * 1024 ** 2;

/** A machine on which users run jobs. */
class Lab {
  constructor({ env, witness }, command, configuration = '') {
    Object.assign(this, { env, witness, command, isOver: false, failure: null });
    this.directory = dirname(witness.path);
    env.GPU_OWNER_MACHINE_CONFIG = join(this.directory, 'config.yaml');
    writeFileSync(env.GPU_OWNER_MACHINE_CONFIG, `${configuration}\n`);
    this.locks = join(this.directory, env.GPU_OWNER_SIMULATE, 'locks');
    mkdirSync(this.locks, { recursive: true });
    for (let path = this.locks; path.includes('gpu-owner-bench-'); path = dirname(path))
      chmodSync(path, 0o1777);
    chmodSync(witness.path, 0o666);
  }

  /** Starts the command. */
  start(uid, ...words) {
    const home = join(this.directory, `home-${uid}`);
    mkdirSync(home, { recursive: true });
    chownSync(home, uid, uid);
    const env = { ...this.env, HOME: home, XDG_STATE_HOME: home };
    const child = spawn(this.command, words, { env, uid, gid: uid });
    let said = '';
    child.stderr.on('data', (text) => {
      said += text;
    });
    child.once('exit', (code) => {
      if (code > 0) this.failure ??= new Error(`${words.join(' ')} exited with ${code}: ${said}`);
    });
    return child;
  }

  run(uid, seconds, ...options) {
    return this.start(uid, 'run', '--placeholder', 'none', ...options, ...this.#job(seconds));
  }

  /** Submits jobs, one after the other. */
  async backlog(uid, count, seconds, ...options) {
    for (let i = 0; i < count && this.failure === null; i++)
      await once(this.start(uid, 'submit', ...options, ...this.#job(seconds)), 'exit');
  }

  /** A job, and another one each time that it has ended. */
  async loop(uid, seconds, ...options) {
    while (!this.isOver && this.failure === null) await once(this.run(uid, seconds, ...options), 'exit');
  }

  /** Holds GPUs. @returns ends that */
  async hold(...words) {
    const child = this.start(0, 'hold', '--placeholder', 'none', ...words);
    await once(child.stdout, 'data');
    return () => child.kill('SIGKILL');
  }

  #job(seconds) {
    return ['--', 'python3', '-SEc', JOB, this.witness.path, String(seconds)];
  }

  /** Waits until a job of the user has begun. */
  begun(uid) {
    return this.#until(() => this.#hasBegun(uid));
  }

  /** Waits until a request of the user is in the wait queue, or a job has begun. */
  known(uid) {
    return this.#until(() => {
      if (this.#hasBegun(uid)) return true;
      const { stdout } = spawnSync(this.command, ['queue', '--json'], { env: this.env, encoding: 'utf8' });
      return JSON.parse(stdout).some((request) => request.uid === uid);
    });
  }

  #hasBegun(uid) {
    return readFileSync(this.witness.path, 'latin1').includes(`${uid}:`);
  }

  async #until(isSo) {
    for (const end = performance.now() + TIMEOUT_MS; !isSo(); await pause(100)) {
      if (this.failure !== null) throw this.failure;
      if (performance.now() > end) throw new Error('a request has not come, or its job has not begun');
    }
  }

  /** Says in the ledger how long the user's jobs have lasted. What runs now changes nothing. */
  writeLedger(uid, hours) {
    const usage = join(this.locks, 'usage');
    mkdirSync(usage, { recursive: true });
    chmodSync(usage, 0o1777);
    const [held, now] = [hours * 3_600_000, Date.now()];
    const lease = {
      since: now - held - 1_000,
      waited: 0,
      gpus: [{ index: 0, uuid: 'x' }],
      held,
      ended: true,
    };
    const line = `\n${JSON.stringify(lease).padEnd(300)}\n`;
    const file = openSync(join(usage, `${uid}-${new Date(now).toISOString().slice(0, 7)}.jsonl`), 'w');
    fchownSync(file, uid, uid);
    ftruncateSync(file, LEDGER_BYTES - line.length);
    writeSync(file, line, LEDGER_BYTES - line.length);
  }

  /** Ends all. @returns all holds, each with its user */
  async end() {
    this.isOver = true;
    const { failure } = this; // what the end of all makes fail doesn't count
    const all = failure === null ? this.witness.check().all : [];
    await endLeftovers(dirname(this.directory));
    if (failure !== null) throw failure;
    return all.map((hold) => ({ ...hold, user: Number(hold.pid.split(':')[0]) }));
  }
}

const now = () => process.hrtime.bigint();

/** A user's part of the time of all holds, in %. */
function partOf(user, holds) {
  const sum = (some) => some.reduce((time, { had, gone }) => time + Number(gone - had), 0);
  return (100 * sum(holds.filter((hold) => hold.user === user))) / sum(holds);
}

/** @param tools `place`, `row` and `command` of figures.js */
export async function fair(bench, { place, row, command }) {
  if (process.geteuid?.() !== 0 || bench.driver !== null)
    throw new Error('needs root, to act as several users, and simulated GPUs');
  const [seconds, count] = bench.quick ? [4, 6] : [15, 30];
  const rows = [];
  const open = (name, gpus, configuration) => new Lab(place(bench, name, gpus), command, configuration);
  /** Measures a user's part of what two or more of them get from now on. */
  const share = async (lab, label, users, part) => {
    const since = now();
    await pause(1_000 * seconds);
    const holds = (await lab.end()).filter(({ had, user }) => had >= since && users.includes(user));
    const measured = partOf(users[0], holds);
    const target = { text: `${part} % ± 10`, met: Math.abs(measured - part) <= 10 };
    rows.push(row(label, '%', [measured], { target }));
  };

  const rejoin = open('rejoin', 1);
  for (const user of [BOB, CAROL, DAVE]) rejoin.loop(user, JOB_S);
  await rejoin.backlog(ALICE, count, JOB_S);
  await share(rejoin, 'one GPU: a backlog beside three users who come again', [ALICE, BOB, CAROL, DAVE], 25);

  const HELD = ['-n', '1', '--devices', '2'];
  for (const [what, configuration, words] of [
    ['for a GPU that is held for long', '', HELD],
    ["at its user's limit", 'limits: { gpus: 2 }', ['-n', '2']],
    ['and is suspended', '', ['-n', '3']],
  ]) {
    const lab = open(what.replaceAll(/\W/g, ''), 3, configuration);
    lab.run(CAROL, 600, ...HELD);
    await lab.known(CAROL);
    const release = await lab.hold('--devices', '0,1');
    const { pid } = lab.run(configuration === '' ? DAVE : CAROL, 600, ...words);
    await pause(JOIN_MS);
    if (configuration === '') await lab.known(DAVE);
    if (what.includes('suspended')) process.kill(pid, 'SIGSTOP');
    await lab.backlog(ALICE, 3 * count, JOB_S, '--devices', '0,1');
    for (let i = 0; i < 3; i++) lab.loop(BOB, JOB_S, '--devices', '0,1');
    await lab.known(BOB);
    release();
    await share(
      lab,
      `two GPUs: a backlog beside three loops, while a request waits ${what}`,
      [ALICE, BOB],
      50,
    );
  }

  const lengths = open('lengths', 1);
  lengths.writeLedger(ALICE, 12);
  lengths.writeLedger(BOB, 1);
  const release = await lengths.hold('-n', '1');
  await lengths.backlog(ALICE, count / 2, 12 * 0.1);
  await lengths.backlog(BOB, 2 * count, 0.1);
  release();
  await share(lengths, 'one GPU: jobs of 12 beside jobs of 1, as the ledger knows', [ALICE, BOB], 50);

  const day = open('day', 8);
  const begin = await day.hold('-n', '8');
  await day.backlog(ALICE, 1.5 * count, 2 * HOUR_S, '--for', '2h');
  begin();
  const asked = new Map();
  for (const [user, hours, gpus] of [
    [BOB, 5, 1],
    [CAROL, 1, 8],
  ]) {
    await pause(1_000 * HOUR_S * (bench.quick ? 0 : hours));
    asked.set(user, now());
    day.run(user, 2 * HOUR_S, '--for', '2h', '-n', String(gpus));
  }
  await day.begun(BOB);
  await day.begun(CAROL);
  const waits = new Map();
  for (const { user, had } of await day.end())
    if (!waits.has(user)) waits.set(user, Number(had - (asked.get(user) ?? had)) / 1e9 / HOUR_S);
  for (const [user, name, most] of [
    [BOB, 'Bob, 1 GPU', 2],
    [CAROL, 'Carol, 8 GPUs', 4],
  ]) {
    const hours = waits.get(user) ?? Number.POSITIVE_INFINITY;
    rows.push(
      row(`the day of docs/fairness.md, an hour in ${HOUR_S} s: ${name} waits`, 'h', [hours], {
        target: { text: `at most ${most} h`, met: hours <= most },
      }),
    );
  }

  const large = open('large', 4);
  for (const user of [ALICE, BOB, CAROL]) for (let i = 0; i < 2; i++) large.loop(user, JOB_S);
  await pause(3_000);
  const times = [];
  for (let i = 0; i < (bench.quick ? 1 : 5); i++) {
    const from = now();
    await once(large.run(DAVE, 0, '-n', '4'), 'exit');
    times.push(Number(now() - from) / 1e9);
  }
  await large.end();
  rows.push(row(`a request for 4 GPUs beside six loops of jobs of ${JOB_S} s, until its end`, 's', times));
  return rows;
}
