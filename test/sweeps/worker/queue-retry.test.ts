import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { QueueRemovedError } from '../../../lib/sweeps/queue/queue.ts';
import { retryQueue } from '../../../lib/sweeps/worker/retry.ts';
import { Shutdown } from '../../../lib/sweeps/worker/shutdown.ts';

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** Tries an operation that always fails. */
function trying(error: Error) {
  const shutdown = new Shutdown(null, 0);
  const state = { tries: 0, end: 'none yet' };
  const operation = () => {
    state.tries += 1;
    return Promise.reject(error);
  };
  retryQueue(operation, shutdown, () => {}).catch(({ message }) => {
    state.end = message;
  });
  return { shutdown, state };
}

test('an operation of the queue that fails is tried again for as long as it takes', async () => {
  const { state } = trying(new Error('full'));
  await vi.advanceTimersByTimeAsync(24 * 3600 * 1000);
  expect(state.end).toBe('none yet');
  expect(state.tries).toBeGreaterThan(1000);
});

test('an operation of a queue that was removed is not tried again', async () => {
  const { state } = trying(new QueueRemovedError('gone'));
  await vi.advanceTimersByTimeAsync(0);
  expect(state).toEqual({ tries: 1, end: 'gone' });
});

test('a worker that is to end at once stops trying', async () => {
  const { state, shutdown } = trying(new Error('full'));
  await vi.advanceTimersByTimeAsync(3600 * 1000);
  shutdown.drain();
  await vi.advanceTimersByTimeAsync(3600 * 1000);
  expect(state.end).toBe('none yet');
  shutdown.stop();
  await vi.advanceTimersByTimeAsync(1000);
  expect(state.end).toBe('full');
});
