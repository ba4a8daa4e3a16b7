// How long it takes from the release of a GPU, or the death of its owner, to the next owner's lease, in the wait queue.
import { execFileSync, spawn } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { environment, Partner, pause, summarize } from './measure.js';
import { openWitness } from './witness.js';

const root = dirname(import.meta.dirname);
const CROWDS = [1, 10, 100, 1000];
const ROUNDS = { 1: 60, 10: 60, 100: 60, 1000: 25 };
/** Time to join the wait queue and fall asleep, in ms. */
const REST = 30;
/** At most, in the median, in us. */
const LIMIT = 2000;

const BARE = 'C, two processes and one lock';
const LINE = 'C, waiters in the queue';
const OWNER = 'gpu-owner';

export const handover = {
  title: 'Hand-over',
  question: 'How long after the owner of a GPU released it or was killed does the next waiter have it?',
  async run(bench) {
    // As lock directories are.
    const directory = bench.inMemory();
    const env = environment({ GPU_OWNER_SIMULATE: '1', GPU_OWNER_SIMULATE_DIR: directory });
    const native = compile(directory);
    const witness = openWitness(directory);
    const claimants = [0, 1].map(() => new Claimant(env, witness.path));
    const machine = { directory, native, claimants, bench };
    try {
      const released = [];
      const killed = [];
      for (const crowd of bench.quick ? [1, 100] : CROWDS) {
        released.push({ ...rowOf(crowd), series: await afterRelease(machine, crowd) });
        killed.push({ ...rowOf(crowd), series: await afterKill(machine, crowd) });
      }
      const { holds } = witness.check();
      const note =
        'warm processes without placeholder, simulated driver without latency; the times of two processes in C do not depend ' +
        `on the number of waiters, so each row repeats them; a witness saw ${holds} holds, never two at once`;
      return [
        table('after-release', 'From release to the next lease', note, released),
        table('after-kill', 'From kill -9 of a small owner to the next lease', note, killed),
      ];
    } finally {
      for (const claimant of claimants) claimant.end();
    }
  },
};

const rowOf = (crowd) => ({ label: `${crowd} ${crowd === 1 ? 'waiter' : 'waiters'}` });

function table(name, title, note, rows) {
  const medians = rows.map(({ series }) => series[OWNER].median);
  const [first, last] = [medians[0], medians.at(-1)];
  return {
    name,
    title,
    unit: 'us',
    note,
    base: BARE,
    rows,
    targets: [
      {
        text: `at most ${LIMIT} us in the median, with any number of waiters`,
        value: Math.max(...medians),
        limit: LIMIT,
        met: Math.max(...medians) <= LIMIT,
      },
      {
        text: `with ${rows.at(-1).label}, at most 1.5 times as long as with 1`,
        value: last / first,
        limit: 1.5,
        met: last / first <= 1.5,
      },
    ],
  };
}

const roundsOf = (crowd, { quick }) => (quick ? 10 : ROUNDS[crowd]);

async function afterRelease(machine, crowd) {
  const { directory, native, bench } = machine;
  const file = join(directory, `released-${crowd}`);
  const rounds = roundsOf(crowd, bench);
  // One alone doesn't hand over to anybody.
  const line = crowd === 1 ? null : numbers(native, 'line', file, `${file}-lease`, String(crowd));
  return {
    [BARE]: summarize(numbers(native, 'bare', join(directory, 'bare'), String(rounds))),
    ...(line === null ? {} : { [LINE]: summarize(line) }),
    [OWNER]: summarize(await pingPong(machine, crowd, rounds)),
  };
}

async function afterKill(machine, crowd) {
  const { directory, native, bench } = machine;
  const rounds = roundsOf(crowd, bench);
  return {
    [BARE]: summarize(numbers(native, 'killed', join(directory, 'killed'), String(rounds))),
    [OWNER]: summarize(await killing(machine, crowd, rounds)),
  };
}

function compile(directory) {
  const program = join(directory, 'handover');
  const sources = ['locks.cc', 'wait_queue.cc', 'heartbeat_file.cc', 'files.cc'].map((name) =>
    join(root, 'native/locks', name),
  );
  const baseline = join(import.meta.dirname, 'baselines/handover.cc');
  execFileSync('c++', ['-std=c++17', '-O2', '-I', join(root, 'native'), '-o', program, baseline, ...sources]);
  return program;
}

function numbers(program, ...args) {
  return execFileSync(program, args, { encoding: 'utf8' }).trim().split('\n').map(Number);
}

class Claimant extends Partner {
  constructor(env, witness) {
    const path = join(import.meta.dirname, 'waiter.js');
    super(spawn(process.execPath, [path, witness], { env, stdio: ['pipe', 'pipe', 'inherit'] }));
  }

  /** Nanoseconds of what it says next. */
  async heard(word) {
    const value = await super.heard();
    const [said, at] = value.split(' ');
    if (said !== word) throw new Error(`${word} expected, not ${value}`);
    return BigInt(at);
  }

  take() {
    this.tell('take');
    return this.heard('had');
  }

  give() {
    this.tell('give');
    return this.heard('released');
  }
}

/** Two claimants in turn, with other waiters behind the one that waits. */
async function pingPong(machine, crowd, rounds) {
  const times = [];
  let [holder, waiter] = machine.claimants;
  await holder.take();
  const behind = new Crowd(machine, crowd - 1);
  for (let i = 0; i < rounds; i++) {
    await behind.join(() => waiter.tell('take'));
    const released = await holder.give();
    times.push(Number((await waiter.heard('had')) - released) / 1e3);
    [holder, waiter] = [waiter, holder];
  }
  await behind.end();
  await holder.give();
  return times;
}

/** An owner that is a small C program is killed, so that what is measured is not the end of a big process. */
async function killing(machine, crowd, rounds) {
  const { native, claimants } = machine;
  const [claimant] = claimants;
  const locks = lockDirectory(machine);
  const lease = join(
    locks,
    readdirSync(locks).find((name) => name.endsWith('.lease')),
  );
  const times = [];
  const behind = new Crowd(machine, crowd - 1);
  for (let i = 0; i < rounds; i++) {
    const holder = spawn(native, ['small', lease, String(1000 + i)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await new Promise((resolve) => holder.stdout.once('data', resolve));
    await behind.join(() => claimant.tell('take'));
    const at = process.hrtime.bigint();
    holder.kill('SIGKILL');
    times.push(Number((await claimant.heard('had')) - at) / 1e3);
    await claimant.give();
  }
  await behind.end();
  return times;
}

/** Waiters behind a claimant. Theirs are preemptible requests: so they may stay in the queue for all rounds. */
class Crowd {
  #machine;
  #count;
  #process = null;

  constructor(machine, count) {
    this.#machine = machine;
    this.#count = count;
  }

  /** Has a claimant wait, and these behind it. */
  async join(tellClaimant) {
    await this.#begin();
    tellClaimant();
    // One that joins reads the whole queue.
    await pause(REST + this.#count / 2);
  }

  async #begin() {
    if (this.#process !== null || this.#count === 0) return;
    this.#process = await crowdIn(this.#machine, this.#count);
    await pause(REST);
  }

  async end() {
    await end(this.#process);
    this.#process = null;
  }
}

/** More waiters of another user, without a process each. */
async function crowdIn(machine, count) {
  const locks = lockDirectory(machine);
  const file = join(locks, 'line.lock');
  const uuid = readdirSync(locks)
    .find((name) => name.endsWith('.lease'))
    .replace('.lease', '');
  const crowd = spawn(machine.native, ['crowd', file, String(count), uuid], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  await new Promise((resolve) => crowd.stdout.once('data', resolve));
  return crowd;
}

async function end(child) {
  if (child === null) return;
  const ended = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGKILL');
  await ended;
}

function lockDirectory({ directory }) {
  return join(directory, '1/locks');
}
