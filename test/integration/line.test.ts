import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { binaries } from '../binaries.ts';
import {
  finished,
  Machine,
  NOBODY,
  output,
  pause,
  python,
  type Starting,
  until,
  whyNotNobody,
} from '../machine.ts';

interface Request {
  name: string;
  count?: number;
  devices?: number[];
  hold?: number;
  maxWait?: number;
}

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);

let machine: Machine;
let witness: string;
beforeEach(() => {
  machine = new Machine(4);
  witness = randomBytes(8).toString('hex');
});
afterEach(() => machine.close());

function waiter(requests: Request[], starting: Starting = {}) {
  const texts = requests.map((request) => JSON.stringify({ hold: 0, ...request }));
  return machine.start([process.execPath, fixture('waiter.mjs'), witness, ...texts], starting);
}

// biome-ignore lint/suspicious/noExplicitAny: the JSON of the command is what tests are about
async function queue(): Promise<any[]> {
  const { code, stdout, stderr } = await machine.runCommand(['queue', '--json']);
  if (code !== 0) throw new Error(stderr);
  return JSON.parse(stdout);
}

async function untilWaiting(count: number): Promise<void> {
  await until(async () => (await queue()).length === count, 15_000);
}

/** Holds GPUs until its input is closed. */
async function holder(count: number, ...options: string[]) {
  const child = machine.startCommand(['hold', '-n', String(count), '--placeholder', 'none', ...options]);
  await output(child, /visibleDevices/);
  return { child, release: () => child.stdin?.end() };
}

async function fakeWaiter(count: number, uuids: string[], pulse = 'alive', place = 0) {
  const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  const record = { user: 'mallory', pid: 1, place, count, uuids, scope: null, boot };
  const file = join(machine.lockDirectory, 'line.lock');
  const fake = machine.start([
    python,
    fixture('fake_waiter.py'),
    file,
    String(place),
    JSON.stringify(record),
    pulse,
  ]);
  await output(fake, /there/);
  return fake;
}

const uuids = async () => (await machine.status()).map(({ uuid }) => uuid);
const names = (text: string, word: string) =>
  [...text.matchAll(new RegExp(`^${word} (\\S+)`, 'gm'))].map(([, name]) => name);
const time = (text: string, word: string, name: string) =>
  Number(new RegExp(`^${word} ${name} .*?([\\d.]+)$`, 'm').exec(text)?.[1] ?? Number.NaN);

describe('who is served when', () => {
  test('first come, first served, across processes and users', async () => {
    const { release } = await holder(4);
    const others = whyNotNobody() === null ? { uid: NOBODY, umask: '077' } : {};
    const texts: Promise<{ stdout: string }>[] = [];
    const order: string[] = [];
    for (let i = 0; i < 8; i++) {
      texts.push(finished(waiter([{ name: `w${i}`, count: 4 }], i % 2 ? others : {})));
      order.push(`w${i}`);
      await untilWaiting(i + 1);
    }
    release();
    const all = (await Promise.all(texts)).map(({ stdout }) => stdout).join('');
    expect(all).not.toMatch(/violation/);
    const served = order.toSorted((a, b) => time(all, 'got', a) - time(all, 'got', b));
    expect(served).toEqual(order);
  });

  test('a request for all GPUs is not starved by small ones that keep coming', async () => {
    const small = ['a', 'b', 'c', 'd', 'e', 'f'].map((letter) =>
      finished(waiter(Array.from({ length: 12 }, (_, i) => ({ name: `${letter}${i}`, hold: 60 })))),
    );
    await untilSomeWait();
    const large = await finished(waiter([{ name: 'large', count: 4, maxWait: 20_000 }]));
    const after = await queue();
    expect(names(large.stdout, 'got')).toEqual(['large']);
    expect(after.length).toBeGreaterThanOrEqual(0);
    const all = (await Promise.all(small)).map(({ stdout }) => stdout).join('');
    expect(all).not.toMatch(/violation/);
    expect(names(all, 'got')).toHaveLength(72);
  });

  async function untilSomeWait() {
    await until(async () => (await queue()).length > 10, 15_000);
  }

  test('one that insists on GPU 0 doesn’t keep the others idle', async () => {
    const { release } = await holder(1, '--devices', '0');
    const picky = finished(waiter([{ name: 'picky', devices: [0] }]));
    await untilWaiting(1);
    // Neither those who come later nor those who don't wait stand behind it.
    expect(names((await finished(waiter([{ name: 'other', count: 3 }]))).stdout, 'got')).toEqual(['other']);
    expect((await machine.runCommand(['run', '--no-wait', '-n', '3', '--', 'true'])).code).toBe(0);
    release();
    expect(names((await picky).stdout, 'got')).toEqual(['picky']);
  });

  test('claims that don’t wait keep to the order: what somebody in line could use is theirs', async () => {
    const { release } = await holder(3);
    const waiting = finished(waiter([{ name: 'pair', count: 2 }]));
    await untilWaiting(1);
    const { code, stderr } = await machine.runCommand(['run', '--no-wait', '--', 'true']);
    expect(code).toBe(75);
    expect(stderr).toMatch(
      /GPU 3: free, but root \(pid \d+: .*waiter\.mjs.*\) stands in line for 2 GPUs since/,
    );
    const { stdout } = await machine.runScript(
      'try { new GPUOwner(); } catch (error) { console.log(error.code, error.gpus[3].reason); }',
    );
    expect(stdout).toMatch(/^ERR_GPU_UNAVAILABLE free, but root/);
    expect((await machine.runCommand(['find'])).code).toBe(75);
    release();
    expect(names((await waiting).stdout, 'got')).toEqual(['pair']);
    expect((await machine.runCommand(['run', '--no-wait', '--', 'true'])).code).toBe(0);
  });
});

describe('waiters that end or stop', () => {
  test.each(['SIGKILL', 'SIGINT'] as const)(
    'where one in the middle ends by %s, nobody misses it',
    async (signal) => {
      const { release } = await holder(4);
      const children = [];
      for (let i = 0; i < 3; i++) {
        children.push(waiter([{ name: `w${i}`, count: 4 }]));
        await untilWaiting(i + 1);
      }
      children[1]?.kill(signal);
      await untilWaiting(2);
      children[0]?.kill(signal);
      await untilWaiting(1);
      const last = finished(children[2] as (typeof children)[number]);
      release();
      expect(names((await last).stdout, 'got')).toEqual(['w2']);
      expect(await queue()).toEqual([]);
    },
  );

  test('a time limit or an AbortSignal ends a wait anywhere in the line, and nothing is left of it', async () => {
    const { release } = await holder(4);
    const first = finished(waiter([{ name: 'first' }]));
    await untilWaiting(1);
    const limited = await finished(waiter([{ name: 'limited', maxWait: 300 }]));
    expect(limited.stdout).toBe('failed limited ERR_TIMEOUT\n');
    const { stdout } = await machine.runScript(`
      const controller = new AbortController();
      setTimeout(() => controller.abort(), 300);
      await GPUOwner.acquire({ signal: controller.signal }).catch((error) => console.log(error.code));
      console.log((await gpuOwner.getQueue()).length);
    `);
    expect(stdout).toBe('ERR_ABORTED\n1\n');
    release();
    await first;
    expect(await queue()).toEqual([]);
  });

  test('a limit of a month is waited for like any other', async () => {
    const { release } = await holder(4);
    const first = finished(waiter([{ name: 'first', count: 4 }]));
    await untilWaiting(1);
    const second = machine.startCommand(['run', '--wait=30d', '--', 'true']);
    const outcome = finished(second);
    await untilWaiting(2);
    await pause(500);
    release();
    await first;
    const { code, stderr } = await outcome;
    expect(code).toBe(0);
    expect(stderr).not.toMatch(/Warning/);
  });

  test('fifty stopped waiters cost seconds', { timeout: 60_000 }, async () => {
    const { release } = await holder(4);
    const stopped = Array.from({ length: 5 }, (_, i) =>
      waiter(Array.from({ length: 10 }, (_, j) => ({ name: `s${i}-${j}`, count: 1 + (j % 4) }))),
    );
    await untilWaiting(50);
    for (const child of stopped) child.kill('SIGSTOP');
    const last = waiter([{ name: 'last', count: 4 }]);
    const outcome = finished(last);
    await untilWaiting(51);
    const started = performance.now();
    release();
    expect(names((await outcome).stdout, 'got')).toEqual(['last']);
    expect(performance.now() - started).toBeLessThan(20_000);
    const entries = await queue();
    expect(entries.map(({ stopped }) => stopped)).toEqual(Array(50).fill(true));
    // Those that go on again get what they waited for.
    const outcomes = stopped.map((child) => finished(child));
    for (const child of stopped) child.kill('SIGCONT');
    const all = (await Promise.all(outcomes)).map(({ stdout }) => stdout).join('');
    expect(names(all, 'got')).toHaveLength(50);
    expect(all).not.toMatch(/violation/);
  });

  test('fifty that live but never take what they could cost seconds, too', { timeout: 60_000 }, async () => {
    await machine.runCommand(['run', '--', 'true']); // makes the lock directory
    const all = await uuids();
    for (let place = 0; place < 50; place++) await fakeWaiter(1, all, 'alive', place);
    const started = performance.now();
    const { stdout } = await finished(waiter([{ name: 'last', count: 2 }]));
    expect(names(stdout, 'got')).toEqual(['last']);
    expect(performance.now() - started).toBeLessThan(40_000);
  });

  test('a single one, too, whether or not anybody has ever leased the GPU', { timeout: 30_000 }, async () => {
    await machine.runCommand(['run', '--devices', '0', '--', 'true']); // GPU 1 has no lease file
    const all = await uuids();
    await fakeWaiter(1, [all[0]], 'alive', 0);
    await fakeWaiter(1, [all[1]], 'alive', 1);
    const outcomes = [0, 1].map((gpu) =>
      finished(waiter([{ name: `w${gpu}`, devices: [gpu], maxWait: 20_000 }])),
    );
    const texts = (await Promise.all(outcomes)).map(({ stdout }) => stdout).join('');
    expect(names(texts, 'got').sort()).toEqual(['w0', 'w1']);
  });

  test('one that stops while those behind look at the driver for another’s sake costs seconds, too', {
    timeout: 30_000,
  }, async () => {
    await machine.runCommand(['run', '-n', '4', '--', 'true']);
    const all = await uuids();
    const first = await fakeWaiter(4, all, 'alive', 0);
    const second = await fakeWaiter(4, all, 'alive', 1);
    const foreign = machine.start([
      join(binaries(), 'gpu-owner-simulator'),
      'occupy',
      '3',
      '--memory',
      '1GiB',
    ]);
    await output(foreign, /ready/);
    machine.set('gpu=0', 'latency=memory:700000');
    const last = machine.startCommand(['run', '-n', '4', '--wait=20s', '--', 'true']);
    const outcome = finished(last);
    await output(last, /3rd in line/);
    await pause(2_350);
    second.kill('SIGKILL'); // in the midst of a look
    await pause(800);
    machine.set('gpu=0', 'latency=off');
    first.kill('SIGSTOP');
    foreign.kill('SIGKILL');
    const started = performance.now();
    expect((await outcome).code).toBe(0);
    expect(performance.now() - started).toBeLessThan(12_000);
  });

  test('a GPU that is silent and hasn’t told its UUID ends nobody’s wait', { timeout: 30_000 }, async () => {
    const { release } = await holder(4);
    machine.set('gpu=0', 'hang=all');
    const outcomes = [];
    for (let i = 0; i < 2; i++) {
      outcomes.push(finished(waiter([{ name: `w${i}`, count: 1 }])));
      await untilWaiting(i + 1);
    }
    await pause(500);
    machine.set('gpu=0', 'hang=off');
    release();
    const all = (await Promise.all(outcomes)).map(({ stdout }) => stdout).join('');
    expect(names(all, 'got').sort()).toEqual(['w0', 'w1']);
  });

  test('a waiter for more than is free is not passed over', async () => {
    const { release } = await holder(1);
    const large = finished(waiter([{ name: 'large', count: 4 }]));
    await untilWaiting(1);
    const small = await finished(waiter([{ name: 'small', maxWait: 7_500 }]));
    expect(small.stdout).toBe('failed small ERR_TIMEOUT\n');
    release();
    expect(names((await large).stdout, 'got')).toEqual(['large']);
  });
});

describe('the line’s file is anybody’s to write', () => {
  beforeEach(async () => {
    await machine.runCommand(['run', '--', 'true']);
  });
  const file = () => join(machine.lockDirectory, 'line.lock');

  test.each([
    ['no JSON', 'garbage'],
    ['a list', '[]'],
    ['absurd counts', JSON.stringify({ place: 0, count: 1e300, uuids: 'all' })],
    ['a million brackets', '['.repeat(4_000)],
    ['escape sequences', JSON.stringify({ place: 0, user: '\u001b[2J', count: -1, uuids: [] })],
  ])('a record that is %s keeps nobody waiting', async (_, record) => {
    const fake = machine.start([python, fixture('fake_waiter.py'), file(), '0', record]);
    await output(fake, /there/);
    expect((await machine.runCommand(['run', '--no-wait', '--', 'true'])).code).toBe(0);
    expect(await queue()).toEqual([]);
  });

  test.each(['', 'never', '-1', '99999999999999'])('the sign of life %j is none', async (pulse) => {
    const fake = await fakeWaiter(4, await uuids(), pulse || ' ');
    expect((await machine.runCommand(['run', '--no-wait', '-n', '4', '--', 'true'])).code).toBe(0);
    expect(await queue()).toMatchObject([{ position: 1, count: 4, user: 'mallory', stopped: true }]);
    fake.kill('SIGKILL');
  });

  test('with a file that can’t be used, claims go on without order', async () => {
    for (const spoil of [
      () => symlinkSync('/etc/hostname', file()),
      () => mkdirSync(file()),
      () => writeFileSync(file(), 'x'.repeat(100)),
    ]) {
      rmSync(file(), { recursive: true, force: true });
      spoil();
      const { release } = await holder(4);
      const waiting = waiter([{ name: 'one' }]);
      const outcome = finished(waiting);
      await pause(300);
      release();
      expect(names((await outcome).stdout, 'got')).toEqual(['one']);
    }
  });

  test('a stranger who locks the whole file is no waiter, and keeps nobody from waiting', async () => {
    writeFileSync(file(), '');
    chmodSync(file(), 0o666);
    const locker = machine.start([python, fixture('locker.py'), file(), 'ofd', '0', '0']);
    await output(locker, /locked/);
    const { release } = await holder(4);
    const waiting = waiter([{ name: 'one' }]);
    const outcome = finished(waiting);
    await output(waiting, /no place in line to be had/);
    release();
    expect(names((await outcome).stdout, 'got')).toEqual(['one']);
  });

  test('what somebody overwrites in it is written again', async () => {
    const foreign = machine.start([
      join(binaries(), 'gpu-owner-simulator'),
      'occupy',
      '3',
      '--memory',
      '1GiB',
    ]);
    await output(foreign, /ready/);
    const outcome = finished(waiter([{ name: 'one', count: 4 }]));
    await untilWaiting(1);
    truncateSync(file(), 0);
    await untilWaiting(1);
    foreign.kill('SIGKILL');
    expect(names((await outcome).stdout, 'got')).toEqual(['one']);
  });

  test('when somebody removes it, waiters find together again', async () => {
    const { release } = await holder(4);
    const first = finished(waiter([{ name: 'first', count: 4 }]));
    await untilWaiting(1);
    rmSync(file());
    const second = finished(waiter([{ name: 'second', count: 4 }]));
    await untilWaiting(1);
    release();
    const all = (await Promise.all([first, second])).map(({ stdout }) => stdout).join('');
    expect(names(all, 'got').sort()).toEqual(['first', 'second']);
    expect(all).not.toMatch(/violation/);
  });
});
