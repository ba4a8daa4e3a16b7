import { rmSync, symlinkSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { finished, Machine, NOBODY, output, pause, until, whyNotNobody } from '../support/machine.ts';
import { names, Waiters } from './waiters.ts';

let machine: Machine;
let waiters: Waiters;
beforeEach(() => {
  machine = new Machine(4);
  waiters = new Waiters(machine);
});
afterEach(() => machine.close());

const time = (text: string, word: string, name: string) =>
  Number(new RegExp(`^${word} ${name} .*?([\\d.]+)$`, 'm').exec(text)?.[1] ?? Number.NaN);

describe('the order of waiters', () => {
  test('is first come, first served with `order: fifo`, across processes and users', async () => {
    machine.configure('order: fifo\n');
    const { release } = await waiters.holder(4);
    const others = whyNotNobody() === null ? { uid: NOBODY, umask: '077' } : {};
    const texts: Promise<{ stdout: string }>[] = [];
    const order: string[] = [];
    for (let i = 0; i < 4; i++) {
      texts.push(finished(waiters.waiter([{ name: `w${i}`, count: 4 }], i % 2 ? others : {})));
      order.push(`w${i}`);
      await waiters.untilWaiting(i + 1);
    }
    release();
    const all = (await Promise.all(texts)).map(({ stdout }) => stdout).join('');
    expect(all).not.toMatch(/violation/);
    const served = order.toSorted((a, b) => time(all, 'got', a) - time(all, 'got', b));
    expect(served).toEqual(order);
  });

  test('a request for all GPUs is not starved by small ones that keep coming', async () => {
    const { release } = await waiters.holder(4);
    const start = (letter: string) =>
      finished(waiters.waiter(Array.from({ length: 6 }, (_, i) => ({ name: `${letter}${i}`, hold: 60 }))));
    const small = ['a', 'b'].map(start);
    await until(() => waiters.waiting().length > 5);
    const waiting = finished(waiters.waiter([{ name: 'large', count: 4, maxWait: 20_000 }]));
    await until(() => waiters.waiting().some(({ count }) => count === 4));
    small.push(...['c', 'd'].map(start));
    release();
    const large = await waiting;
    expect(names(large.stdout, 'got')).toEqual(['large']);
    const all = (await Promise.all(small)).map(({ stdout }) => stdout).join('');
    expect(all).not.toMatch(/violation/);
    expect(names(all, 'got')).toHaveLength(24);
  });

  test('a claim that does not wait never takes a GPU that a waiter could use', async () => {
    const { release } = await waiters.holder(3);
    const waiting = finished(waiters.waiter([{ name: 'pair', count: 2 }]));
    await waiters.untilWaiting(1);
    const { code, stderr } = await machine.runCommand(['run', '--no-wait', '--', 'true']);
    expect(code).toBe(75);
    expect(stderr).toMatch(
      /GPU 3: free, but root \(pid \d+: .*waiter\.mjs.*\) is ahead in the wait queue, for 2 GPUs since/,
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
  test('waiters before the last one that end by SIGKILL and SIGINT delay nobody', async () => {
    const { release } = await waiters.holder(4);
    const children = [];
    for (let i = 0; i < 3; i++) {
      children.push(waiters.waiter([{ name: `w${i}`, count: 4 }]));
      await waiters.untilWaiting(i + 1);
    }
    children[1]?.kill('SIGKILL');
    await waiters.untilWaiting(2);
    children[0]?.kill('SIGINT');
    await waiters.untilWaiting(1);
    const last = finished(children[2] as (typeof children)[number]);
    release();
    expect(names((await last).stdout, 'got')).toEqual(['w2']);
    expect(await waiters.queue()).toEqual([]);
  });

  test('a time limit or an AbortSignal ends a wait at any position, and leaves nothing', async () => {
    const { release } = await waiters.holder(4);
    const first = finished(waiters.waiter([{ name: 'first' }]));
    await waiters.untilWaiting(1);
    const limited = await finished(waiters.waiter([{ name: 'limited', maxWait: 300 }]));
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
    expect(await waiters.queue()).toEqual([]);
  });
});

describe('any user can write to the wait queue’s file', () => {
  beforeEach(async () => {
    await machine.runCommand(['run', '--', 'true']);
  });
  const file = () => waiters.file;

  test('heartbeats that make no sense are ignored', async () => {
    const uuids = waiters.machine.uuids();
    const heartbeats = [' ', 'never', '-1', '99999999999999'];
    for (const [place, heartbeat] of heartbeats.entries())
      await waiters.fakeWaiter(4, uuids, heartbeat, place);
    expect((await machine.runCommand(['run', '--no-wait', '-n', '4', '--', 'true'])).code).toBe(0);
    const entry = { count: 4, user: 'mallory', stopped: true };
    expect(await waiters.queue()).toMatchObject(heartbeats.map(() => entry));
  });

  test('claims go on without order where the file can’t be used', async () => {
    rmSync(file(), { recursive: true, force: true });
    symlinkSync('/etc/hostname', file());
    const { release } = await waiters.holder(4);
    const waiting = waiters.waiter([{ name: 'one' }]);
    const outcome = finished(waiting);
    await pause(300);
    release();
    expect(names((await outcome).stdout, 'got')).toEqual(['one']);
  });

  test('a record that somebody overwrites is written again', async () => {
    const foreign = machine.start([
      join(binaries(), 'gpu-owner-simulator'),
      'occupy',
      '3',
      '--memory',
      '1GiB',
    ]);
    await output(foreign, /ready/);
    const outcome = finished(waiters.waiter([{ name: 'one', count: 4 }]));
    await waiters.untilWaiting(1);
    truncateSync(file(), 0);
    await waiters.untilWaiting(1);
    foreign.kill('SIGKILL');
    expect(names((await outcome).stdout, 'got')).toEqual(['one']);
  });
});
