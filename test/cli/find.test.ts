// `find --wait`: it waits as claims do, and takes nothing.
import type { ChildProcess } from 'node:child_process';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { finished, Machine, output, uuidOf } from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

/** Holds GPUs until its input is closed. */
async function hold(...args: string[]): Promise<ChildProcess> {
  const holder = machine.startCommand(['hold', ...args]);
  await output(holder, /visibleDevices/);
  return holder;
}

async function release(holder: ChildProcess): Promise<void> {
  holder.stdin?.end();
  await finished(holder, 'exit');
}

async function queue(): Promise<unknown[]> {
  return JSON.parse((await machine.runCommand(['queue', '--json'])).stdout);
}

test('find --wait is woken by the end of a lease, and neither claims nor joins the wait queue', async () => {
  const holder = await hold('-n', '2');
  const waiting = machine.startCommand(['find', '--wait', '--visible-devices', 'index']);
  const found = finished(waiting);
  await output(waiting, /waiting for a GPU:\n {2}GPU 0: leased by/);
  expect(await queue()).toEqual([]);
  await release(holder);
  expect(await found).toMatchObject({ code: 0, stdout: '0\n' });
  expect(await machine.states()).toEqual(['free', 'free']);
});

test('find --wait sees the end of a program that has not claimed', async () => {
  const stranger = machine.startCommand(['simulate', 'occupy', '1']);
  await output(stranger, /ready/);
  const waiting = machine.startCommand(['find', '--wait', '-n', '2']);
  const found = finished(waiting);
  await output(waiting, /waiting for 2 GPUs:\n {2}.*\n? *GPU 1: busy/);
  stranger.stdin?.end();
  expect(await found).toMatchObject({ code: 0, stdout: `${uuidOf(0)},${uuidOf(1)}\n` });
});

test('find --wait lets waiters go first, even if a GPU is free', async () => {
  const holder = await hold('--devices', '0');
  const inLine = machine.startCommand(['hold', '-n', '2', '--wait']);
  const claimed = output(inLine, /visibleDevices/);
  await output(inLine, /waiting for 2 GPUs, 1st in the queue/);
  const waiting = machine.startCommand(['find', '--wait']);
  const found = finished(waiting);
  await output(waiting, /GPU 1: free, but .* is ahead in the wait queue, for 2 GPUs/);
  const waitsOn = output(waiting, /GPU 1: leased by/);
  await release(holder);
  await claimed;
  await waitsOn;
  await release(inLine);
  expect(await found).toMatchObject({ code: 0, stdout: `${uuidOf(0)}\n` });
});

test('find --wait=DURATION ends with 75 when the time is up, find at once', async () => {
  const holder = await hold('-n', '2');
  const late = await machine.runCommand(['find', '--wait=200ms']);
  expect(late).toMatchObject({ code: 75, stdout: '' });
  expect(late.stderr).toMatch(/timed out after 200 ms: 1 GPU asked for, none is free:\n {2}GPU 0: leased by/);
  const now = await machine.runCommand(['find']);
  expect(now).toMatchObject({ code: 75, stdout: '' });
  expect(now.stderr).toMatch(/^gpu-owner: 1 GPU asked for, none is free:\n {2}GPU 0: leased by/);
  await release(holder);
});

test('find --wait fails at once if waiting cannot help', async () => {
  machine.set('gpu=1', 'lost=on');
  const result = await machine.runCommand(['find', '--wait', '-n', '2']);
  expect(result).toMatchObject({ code: 75, stdout: '' });
  expect(result.stderr).toMatch(/waiting would not help: 2 GPUs asked for, only 1 is free/);
  expect((await machine.runCommand(['find', '--wait', '-n', '3'])).code).toBe(64);
});

test('find --wait is ended by Ctrl-C as by default, which shells call 130', async () => {
  const holder = await hold('-n', '2');
  const waiting = machine.startCommand(['find', '--wait']);
  const end = finished(waiting);
  await output(waiting, /waiting for a GPU/);
  sendSignal(waiting.pid, 'SIGINT');
  expect(await end).toMatchObject({ code: null, signal: 'SIGINT', stdout: '' });
  await release(holder);
});
