// How long it takes from the release of a GPU to its next owner's lease, for those who stand in line.
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { describe, environment, median, pause } from './measure.js';

const root = dirname(import.meta.dirname);
const ROUNDS = 100;
const CROWDS = [0, 10, 100, 1000];

export async function handover() {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bench-'));
  const env = environment({ GPU_OWNER_SIMULATE: '1', GPU_OWNER_SIMULATE_DIR: directory });
  const native = compile(directory);
  const numbers = (...args) =>
    execFileSync(native, args, { encoding: 'utf8' }).trim().split('\n').map(Number);
  const results = {};
  const report = (name, values) => {
    const sorted = [...values].sort((a, b) => a - b);
    const p99 = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.99))];
    results[name] = { p50: median(values), p99, rounds: values.length };
    console.log(`  ${name}: ${describe(values, 'us', 0)}, p99 ${p99.toFixed(0)} us (${values.length} times)`);
  };
  try {
    console.log(
      'From release to the next lease, warm, without placeholder (simulated driver without latency):',
    );
    report('C, two processes and one lock', numbers('bare', join(directory, 'bare'), String(ROUNDS)));
    for (const waiters of [10, 100, 1000]) {
      const file = join(directory, `line-${waiters}`);
      report(`C, ${waiters} waiters in line`, numbers('line', file, `${file}-lease`, String(waiters)));
    }
    const [a, b] = [new Claimant(env), new Claimant(env)];
    await a.take();
    for (const crowd of CROWDS) {
      const times = await pingPong([a, b], { directory, native, crowd });
      report(`gpu-owner${crowd === 0 ? '' : `, ${crowd} more in line`}`, times);
    }
    a.end();
    b.end();
    report('gpu-owner, after kill -9 of a small holder', await killed(env, { directory, native }));
  } finally {
    rmSync(directory, { recursive: true });
  }
  return results;
}

function compile(directory) {
  const program = join(directory, 'handover');
  const sources = ['locks.cc', 'line.cc'].map((name) => join(root, 'native/locks', name));
  const baseline = join(import.meta.dirname, 'baselines/handover.cc');
  execFileSync('c++', ['-std=c++17', '-O2', '-I', join(root, 'native'), '-o', program, baseline, ...sources]);
  return program;
}

class Claimant {
  constructor(env) {
    this.process = spawn(process.execPath, [join(import.meta.dirname, 'waiter.js')], {
      env,
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    this.lines = createInterface({ input: this.process.stdout })[Symbol.asyncIterator]();
  }

  tell(word) {
    this.process.stdin.write(`${word}\n`);
  }

  /** Nanoseconds of what it says next. */
  async heard(word) {
    const { value } = await this.lines.next();
    const [said, at] = value.split(' ');
    if (said !== word) throw new Error(`${word} expected, not ${value}`);
    return BigInt(at);
  }

  take() {
    this.tell('take');
    return this.heard('had');
  }

  end() {
    this.process.stdin.end();
  }
}

/** Two claimants in turn, with others standing in line behind the one that waits. */
async function pingPong([first, second], { directory, native, crowd }) {
  const times = [];
  let [holder, waiter] = [first, second];
  const rounds = crowd > 100 ? ROUNDS / 4 : ROUNDS;
  for (let i = 0; i < rounds; i++) {
    waiter.tell('take');
    await pause(30);
    const others = await crowdIn(directory, native, crowd);
    holder.tell('give');
    const released = await holder.heard('released');
    times.push(Number((await waiter.heard('had')) - released) / 1e3);
    others?.kill('SIGKILL');
    [holder, waiter] = [waiter, holder];
  }
  holder.tell('give');
  await holder.heard('released');
  await first.take();
  return times;
}

async function crowdIn(directory, native, count) {
  if (count === 0) return null;
  const file = join(lockDirectory(directory), 'line.lock');
  const crowd = spawn(native, ['crowd', file, String(count)], { stdio: ['pipe', 'pipe', 'inherit'] });
  await new Promise((resolve) => crowd.stdout.once('data', resolve));
  return crowd;
}

async function killed(env, { directory, native }) {
  const claimant = new Claimant(env);
  await claimant.take();
  claimant.tell('give');
  await claimant.heard('released');
  const locks = lockDirectory(directory);
  const lease = join(
    locks,
    readdirSync(locks).find((name) => name.endsWith('.lease')),
  );
  const times = [];
  for (let i = 0; i < ROUNDS; i++) {
    const holder = spawn(native, ['small', lease, String(1000 + i)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await new Promise((resolve) => holder.stdout.once('data', resolve));
    claimant.tell('take');
    await pause(30);
    const at = process.hrtime.bigint();
    holder.kill('SIGKILL');
    times.push(Number((await claimant.heard('had')) - at) / 1e3);
    claimant.tell('give');
    await claimant.heard('released');
  }
  claimant.end();
  return times;
}

function lockDirectory(directory) {
  return join(directory, '1/locks');
}
