// While it waits, `gpu-owner run` is a small process without Node.js, and others can't tell the difference.
import { type ChildProcess, spawnSync } from 'node:child_process';
import { cpSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { beginProcessorTime, usage } from '../../bench/processes.js';
import { readActivity } from '../../lib/status/index.ts';
import { Waiters } from '../integration/waiters.ts';
import { binaries } from '../support/binaries.ts';
import { fixture } from '../support/keeper.ts';
import {
  command,
  finished,
  launcher,
  Machine,
  output,
  python,
  root,
  until,
  uuidOf,
} from '../support/machine.ts';
import { isAlive, nameOf, sendSignal, signalAll, signalLiving, stat } from '../support/processes.ts';
import { pause, soakTest, timeoutMs, withTimeouts } from '../support/time.ts';

const HANDOVER = {
  handoverBehind: timeoutMs('handoverBehind', 300),
  handoverAtFront: timeoutMs('handoverAtFront', 300),
};

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
  vi.stubEnv('GPU_OWNER_TIMEOUTS', withTimeouts(HANDOVER).GPU_OWNER_TIMEOUTS);
});
afterEach(() => {
  vi.unstubAllEnvs();
  return machine.close();
});

/** Longer than a lone waiter takes to become small: the machine may be busy. */
const RESTS = 60_000;
const MANY = 500;
const bridge = fixture('pty_bridge.py');

/** Has the GPU until it is told to let it go. */
async function holder() {
  const child = machine.startCommand(['hold', '--placeholder', 'none']);
  await output(child, /visibleDevices/);
  return { child, release: () => child.stdin?.end() };
}

const START = [launcher, 'run', '--placeholder', 'none'];

function waiter(command: string[], options: string[] = [], starting = {}): ChildProcess {
  return machine.start([...START, ...options, '--', ...command], starting);
}

const rests = (child: ChildProcess) => nameOf(child.pid as number) === 'gpu-owner-wait';
const resting = (...children: ChildProcess[]) => until(() => children.every(rests), RESTS);

/** PIDs in the order of the queue, as soon as there are so many. */
async function waiting(count: number): Promise<(number | null)[]> {
  const pids = () => readActivity(machine.lockDirectory).waiting.map(({ info }) => info.pid);
  await until(() => pids().length === count);
  return pids();
}

/** Waiters, each of which is in the queue before the next one starts. */
async function queueUp(commands: string[][]): Promise<ChildProcess[]> {
  const children: ChildProcess[] = [];
  for (const command of commands) {
    children.push(waiter(command));
    await waiting(children.length);
  }
  return children;
}

/** Describes a waiter, for the message of a test that finds it waiting for ever. */
function describeWaiter({ pid = 0 }: ChildProcess): string {
  const { stdout } = spawnSync(process.execPath, [command, 'queue', '--json'], {
    env: machine.env,
    encoding: 'utf8',
  });
  const read = (name: string) => readFileSync(`/proc/${pid}/${name}`, 'utf8').replaceAll('\0', ' ');
  return [read('cmdline'), read('status'), read('syscall'), readFileSync('/proc/locks', 'utf8'), stdout].join(
    '\n',
  );
}

const say = (text: string) => ['sh', '-c', `echo ${text} >> ${join(machine.directory, 'order')}`];
const said = () => readFileSync(join(machine.directory, 'order'), 'utf8').trim().split('\n');

test('the command finds NODE_EXTRA_CA_CERTS, which no Node.js before it reads', async () => {
  const held = await holder();
  await queueUp([['true']]);
  const env = { NODE_EXTRA_CA_CERTS: '/nowhere/ca.pem' };
  const run = waiter(['sh', '-c', 'echo $NODE_EXTRA_CA_CERTS; env | grep -c EXTRA_CA'], [], { env });
  const job = await machine.run([launcher, 'submit', '--', 'env'], { env });
  await resting(run);
  held.release();
  const { stdout, stderr } = await finished(run);
  expect(stdout).toBe('/nowhere/ca.pem\n1\n');
  expect(stderr).not.toMatch(/Ignoring extra certs/);
  const logs = await machine.runCommand(['logs', '-f', job.stdout.trim()]);
  expect(logs.stdout).toMatch(/^NODE_EXTRA_CA_CERTS=\/nowhere\/ca\.pem$/m);
  expect(`${logs.stdout}${job.stderr}`).not.toMatch(/Ignoring extra certs|GPU_OWNER_EXTRA/);
});

test('only the first in the queue keeps Node.js: the others have one thread and little memory', async () => {
  const { release } = await holder();
  const children = await queueUp([say('a'), say('b'), say('c')]);
  const [first, ...behind] = children as [ChildProcess, ...ChildProcess[]];
  const outcomes = children.map((child) => finished(child));
  const before = (await machine.runCommand(['queue', '--json'])).stdout;
  await resting(...behind);
  expect((await machine.runCommand(['queue', '--json'])).stdout).toBe(before);
  for (const { pid = 0 } of behind) {
    expect(readdirSync(`/proc/${pid}/task`)).toEqual([String(pid)]);
    expect(realpathSync(`/proc/${pid}/exe`)).toBe(realpathSync(join(binaries(), 'gpu-owner-keeper')));
    if (process.env.GPU_OWNER_BUILD === undefined) expect(usage(pid).own).toBeLessThanOrEqual(2);
  }
  expect(await waiting(3)).toEqual(children.map(({ pid }) => pid));
  await pause(2 * HANDOVER.handoverAtFront);
  expect(rests(first)).toBe(false);
  release();
  const ended = await Promise.all(outcomes);
  expect(ended.map(({ code }) => code)).toEqual([0, 0, 0]);
  expect(said()).toEqual(['a', 'b', 'c']);
  // No waiter says the same twice.
  for (const { stderr } of ended) {
    const news = stderr.split(/(?=gpu-owner: )/);
    expect(new Set(news).size).toBe(news.length);
  }
});

test('a killed resting waiter is skipped, and a suspended one loses its turn only while it is suspended', async () => {
  const { release } = await holder();
  const children = await queueUp([say('a'), say('b'), say('c')]);
  const [a, b, c] = children as [ChildProcess, ChildProcess, ChildProcess];
  const outcomes = children.map((child) => finished(child));
  await resting(b, c);
  signalLiving(a.pid, 'SIGSTOP');
  signalLiving(b.pid, 'SIGKILL');
  expect(await waiting(2)).toEqual([a.pid, c.pid]);
  release();
  expect((await outcomes[2])?.code).toBe(0);
  signalLiving(a.pid, 'SIGCONT');
  expect((await outcomes[0])?.code).toBe(0);
  expect(said()).toEqual(['c', 'a']);
  expect(await waiting(0)).toEqual([]);
});

soakTest('a resting waiter after a stalled one gets the GPU before claims that don’t wait', async () => {
  const { release } = await holder();
  const waiters = new Waiters(machine);
  await waiters.fakeWaiter(1, [uuidOf(0)]);
  const behind = waiter(say('waited'));
  const outcome = finished(behind);
  await resting(behind);
  release();
  const other = machine.start([...START, '--no-wait', '--', ...say('came')]);
  await until(
    () => !isAlive(behind.pid as number),
    () => `its end: ${describeWaiter(behind)}`,
    RESTS,
  );
  expect((await outcome).code).toBe(0);
  await finished(other); // with 75 if it came while the other had the GPU
  expect(said()[0]).toBe('waited');
});

test('--wait ends with 75 and the reasons at its time, counted from the beginning', async () => {
  await holder();
  const [front] = await queueUp([['true']]);
  const before = performance.now();
  const behind = waiter(['true'], ['--wait=5s']);
  const outcome = finished(behind);
  await resting(behind);
  const { code, stderr } = await outcome;
  expect(code).toBe(75);
  expect(performance.now() - before).toBeGreaterThanOrEqual(5_000);
  expect(stderr).toMatch(/timed out after 5 s: .*\n {2}GPU 0: leased by/);
  sendSignal(front?.pid, 'SIGKILL');
});

test('SIGINT, SIGTERM and SIGHUP each end a resting waiter, and give its slot back', async () => {
  await holder();
  const [first, ...behind] = await queueUp([['true'], ['true'], ['true'], ['true']]);
  const outcomes = behind.map((child) => finished(child));
  await resting(...behind);
  for (const [i, signal] of (['SIGINT', 'SIGTERM', 'SIGHUP'] as const).entries()) {
    behind[i]?.kill(signal);
    expect(await outcomes[i]).toMatchObject({ code: null, signal });
  }
  expect(await waiting(1)).toEqual([first?.pid]);
});

test('Ctrl-Z, fg and Ctrl-C work at a shell', async () => {
  await holder();
  await queueUp([['true']]);
  const shell = ['bash', '--noprofile', '--norc', '-i'];
  const terminal = machine.start([python, bridge, ...shell], {
    env: { TERM: 'dumb', PS1: '$ ', HISTFILE: '' },
  });
  const typing = (text: string, answer: RegExp) => {
    const answered = output(terminal, answer);
    terminal.stdin?.write(text);
    return answered;
  };
  await typing('\n', /\$ /);
  await typing(`${START.join(' ')} -- true\n`, /waiting for a GPU, 2nd/);
  const pid = (await waiting(2))[1] ?? 0;
  await until(() => nameOf(pid) === 'gpu-owner-wait', RESTS);
  await typing('\u001a', /Stopped/);
  expect(stat(pid)?.state).toBe('T');
  await typing('fg\n', /gpu-owner/);
  await until(() => stat(pid)?.state === 'S');
  await typing('\u0003', /\$ /);
  await typing('echo status $?\n', /status 130/);
  expect(isAlive(pid)).toBe(false);
});

test('on a terminal the line goes on, without Node.js, and is erased when the command starts', async () => {
  const { release } = await holder();
  const [first] = await queueUp([['true']]);
  const script = `stty cols 90; exec ${START.join(' ')} -- echo ran`;
  const terminal = machine.start([python, bridge, 'sh', '-c', script], { env: { TERM: 'xterm' } });
  const outcome = finished(terminal);
  const pids = await waiting(2);
  const pid = pids.find((each) => each !== first?.pid) ?? 0;
  await until(() => nameOf(pid) === 'gpu-owner-wait', RESTS);
  expect(readdirSync(`/proc/${pid}/task`)).toEqual([String(pid)]);
  if (process.env.GPU_OWNER_BUILD === undefined) expect(usage(pid).own).toBeLessThanOrEqual(2);
  const secondsIn = (text: string) =>
    [...text.matchAll(/\((\d+) s\)/g)].map(([, seconds]) => Number(seconds));
  // Painted by the small program: Node.js has gone. That program can paint twice in a second.
  let painted = '';
  terminal.stdout?.on('data', (text: Buffer) => {
    painted += text;
  });
  await until(() => new Set(secondsIn(painted)).size >= 3 && nameOf(pid) === 'gpu-owner-wait');
  release();
  const { stdout } = await outcome;
  const [line = '', ...rest] = stdout.split('\r\n');
  const frames = line.split('\r\u001b[K').slice(1);
  expect(frames.pop()).toBe('ran');
  for (const frame of frames.filter((each) => each !== '')) {
    expect(frame).toMatch(
      /^gpu-owner: waiting for a GPU, (1st|2nd) in the queue \(\d+ (ms|s|min( \d+ s)?)\): GPU 0: .*$/,
    );
    expect(frame.length).toBeLessThan(90);
  }
  const seconds = secondsIn(line);
  expect(seconds).toEqual(seconds.toSorted((a, b) => a - b));
  expect(rest.join('')).toContain('[status 0]');
});

test('when the queue’s file is removed, those who wait join the new one', async () => {
  const { release } = await holder();
  const children = await queueUp([say('a'), say('b')]);
  const outcomes = children.map((child) => finished(child));
  await resting(children[1] as ChildProcess);
  rmSync(join(machine.lockDirectory, 'line.lock'));
  expect((await waiting(2)).sort()).toEqual(children.map(({ pid }) => pid as number).sort());
  release();
  expect((await Promise.all(outcomes)).map(({ code }) => code)).toEqual([0, 0]);
});

test('the command finds everything as without a wait', async () => {
  // Bytes that aren't UTF-8, variables that shells can't name, a descriptor, an ignored signal, a limit.
  const words = [python, fixture('odd_start.py'), ...START, '--', python, '-I', '-S', fixture('finds.py')];
  const before = machine.start(words);
  before.stdin?.end('input');
  const without = await finished(before);
  expect(without).toMatchObject({ code: 0, stderr: '' });
  expect(without.stdout).toContain('ODD.NAME%%');
  const { release } = await holder();
  await queueUp([['true']]);
  const after = machine.start(words);
  after.stdin?.end('input');
  const outcome = finished(after);
  await resting(after);
  sendSignal(after.pid, 'SIGHUP');
  sendSignal(after.pid, 'SIGALRM');
  release();
  const with_ = await outcome;
  expect(with_.code).toBe(0);
  expect(with_.stdout).toBe(without.stdout);
});

/** A `run` of a copy of the package, at rest behind another. */
async function restingCopy(timeouts = {}) {
  await queueUp([['true']]);
  const path = join(machine.directory, 'package');
  const install = () => {
    for (const part of ['bin', 'dist', 'package.json', 'node_modules/node-gyp-build']) {
      cpSync(join(root, part), join(path, part), { recursive: true, dereference: true });
    }
    const filter = (file: string) => !file.includes('/obj');
    cpSync(binaries(), join(path, 'build/Release'), { recursive: true, dereference: true, filter });
  };
  install();
  const env = { GPU_OWNER_BUILD: undefined, ...withTimeouts({ ...HANDOVER, ...timeouts }) };
  const child = machine.start([join(path, 'bin/gpu-owner.cjs'), 'run', '--', 'echo', 'ran'], { env });
  const outcome = finished(child);
  await resting(child);
  return { install, remove: () => rmSync(path, { recursive: true }), outcome };
}

test('when the package is upgraded meanwhile, the new one goes on', async () => {
  const { release } = await holder();
  const { remove, install, outcome } = await restingCopy();
  remove();
  release();
  await pause(500);
  install();
  expect(await outcome).toMatchObject({ code: 0, stdout: 'ran\n' });
});

test('descriptors of another version are closed, and the wait restarts', async () => {
  const words = [
    launcher,
    'run',
    '--',
    'sh',
    '-c',
    'echo "$GPU_OWNER_WAITING"; ls /proc/self/fd | grep -c "^20[56]$"',
  ];
  const script = 'exec 205</dev/null 206</dev/null; export GPU_OWNER_WAITING="999 fds=205,206 {"; exec "$@"';
  const { code, stdout } = await machine.run(['bash', '-c', script, 'bash', ...words]);
  expect({ code, stdout }).toEqual({ code: 1, stdout: '\n0\n' });
});

test.each([
  ['2 fds= {"rested":{},"keep":[],"told":[]}'],
  ['2 fds=205 {"rested":{"slot":{"descriptor":205,"number":0,"since":"x"},"rest":null},"keep":[],"told":[]}'],
])('a variable that somebody has made up changes no wait: %s', async (value) => {
  const script = 'exec 205</dev/null; exec "$@"';
  const words = ['bash', '-c', script, 'bash', ...START, '--', 'sh', '-c', 'echo "ran$GPU_OWNER_WAITING"'];
  const env = { GPU_OWNER_WAITING: value };
  expect(await machine.run(words, { env })).toMatchObject({ code: 0, stdout: 'ran\n', stderr: '' });
});

test.runIf(process.env.GPU_OWNER_SOAK)(
  `${MANY} waiters cost little, and wake one after the other`,
  async () => {
    const { child, release } = await holder();
    const [first] = await queueUp([['true']]);
    const many = machine.start([python, fixture('many_waiters.py'), ...manyWords(MANY)]);
    const ended = finished(many);
    const pids = (await output(many, /^pids [\d ]+\n/m)).trim().split(' ').slice(1).map(Number);
    expect(pids).toHaveLength(MANY);
    expect(pids.every((pid) => readdirSync(`/proc/${pid}/task`).length === 1)).toBe(true);
    const times = beginProcessorTime(pids);
    const began = performance.now();
    await pause(8_500); // each has sent its heartbeat
    expect(sum(times()) / (performance.now() - began)).toBeLessThan(MANY / 2_000);
    if (process.env.GPU_OWNER_BUILD === undefined)
      expect(sum(pids.map((pid) => usage(pid).own))).toBeLessThan(MANY);
    // When all were stopped, none of them counts as suspended.
    signalAll(pids, 'SIGSTOP');
    await pause(4_000);
    signalAll(pids, 'SIGCONT');
    await pause(8_000);
    expect(pids.filter((pid) => nameOf(pid) !== 'gpu-owner-wait')).toEqual([]);
    expect(await waiting(MANY + 1)).toEqual([first?.pid, ...pids]);
    release();
    await finished(child);
    expect((await ended).stdout.trim().split('\n').slice(1).map(Number)).toEqual(pids);
  },
);

/** Everything but Node.js, of which so many would take a minute to start. */
function manyWords(count: number): string[] {
  return [String(count), join(machine.lockDirectory, 'line.lock'), join(binaries(), 'gpu-owner-keeper')];
}

function sum(values: number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
