// Attempts of workers on other machines, for which a process here answers: they may live for a while after its death.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Attempt, Queue } from '../../../lib/sweeps/queue/queue.ts';
import { rowOf, takeWithin, worker } from './conformance.ts';
import { spec } from './fixtures/tasks.ts';
import { Remote, type RemoteAttempt } from './remote.ts';

let directory: string;
let url: string;
let queue: Queue;

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-queue-'));
  url = `sqlite:${join(directory, 'queue.db')}`;
  queue = await openQueue(url, directory);
  await queue.enqueue([spec({ n: 0 })]);
});
afterEach(async () => {
  await queue.close();
  rmSync(directory, { recursive: true, force: true });
});

const take = async (outlives: number) => (await queue.take(worker, { outlives })) as Attempt;

test('a task is kept for a while after the process is dead, and counts a start then', async () => {
  const remote = await Remote.start(url, directory);
  const { token } = (await remote.take({ outlives: 60_000 })) as RemoteAttempt;
  await remote.kill();
  await queue.endLost();
  expect(await queue.take(worker)).toBeNull();
  expect((await queue.attempts('living')).map((attempt) => attempt.token)).toEqual([token]);
  await queue.prolong?.([token], 500);
  const killed = performance.now();
  const { start } = await takeWithin(queue, 10_000);
  expect(start).toBe(2);
  expect(performance.now() - killed).toBeGreaterThan(450);
});

test('while the process lives, no time ends it: the lock decides', async () => {
  const { token } = await take(1);
  await queue.changed(50);
  await queue.endLost();
  expect(await queue.take(worker)).toBeNull();
  expect(await queue.complete(token, { y: 1 })).toBe(true);
});

test('what is given back, or has failed, can be had at once', async () => {
  const first = await take(60_000);
  expect(await queue.requeue(first.token, 'the worker ends')).toBe(true);
  const second = await take(60_000);
  expect(second.start).toBe(1);
  expect(await queue.fail(second.token, { error: 'exit code 1', retry: true })).toBe('pending');
  // A heartbeat that was on its way.
  await queue.prolong?.([first.token, second.token], 60_000);
  expect((await take(60_000)).start).toBe(2);
});

test('a task that is cancelled and retried waits until its command has ended', async () => {
  const { token, signal } = await take(60_000);
  await queue.cancel('all');
  await queue.retry({ state: 'cancelled' });
  expect(await queue.take(worker)).toBeNull();
  await queue.changed(1_000);
  expect(signal.aborted).toBe(true);
  expect(await queue.requeue(token, 'it was cancelled')).toBe(false);
  expect((await takeWithin(queue, 1_000)).start).toBe(1);
  expect(await rowOf(queue, 'exp1_0')).toMatchObject({ state: 'active' });
});
