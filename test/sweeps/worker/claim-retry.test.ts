import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { GPUOwnerError } from '../../../lib/errors.ts';
import { retryClaim } from '../../../lib/sweeps/worker/retry.ts';
import { WorkerFixture } from './fixture.ts';

describe('claims that fail', () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  /** Makes a claim that fails so often. */
  function claiming(error: Error, failures: number) {
    const ending = new AbortController();
    const state = { tries: 0, said: [] as string[], end: null as unknown };
    const claim = async () => {
      if (++state.tries <= failures) throw error;
      return 'claimed';
    };
    retryClaim(claim, ending.signal, (message) => state.said.push(message)).then(
      (value) => {
        state.end = value;
      },
      (reason) => {
        state.end = reason;
      },
    );
    return { state, ending };
  }
  const passing = new GPUOwnerError('ERR_PLACEHOLDER', 'CUDA did not start.');

  test('are retried with growing pauses, and told', async () => {
    const { state } = claiming(passing, 3);
    await vi.advanceTimersByTimeAsync(3_400);
    expect(state).toMatchObject({ tries: 3, end: null });
    await vi.advanceTimersByTimeAsync(200);
    expect(state).toMatchObject({ tries: 4, end: 'claimed' });
    expect(state.said).toEqual([0.5, 1, 2].map((rest) => `CUDA did not start. (trying again in ${rest} s)`));
  });

  test('end after half a minute with how often they were tried, and why they failed', async () => {
    const { state } = claiming(passing, 1_000);
    await vi.advanceTimersByTimeAsync(31_000);
    expect(state.end).toBeNull();
    await vi.advanceTimersByTimeAsync(1_000);
    expect(state.end).toMatchObject({
      code: 'ERR_PLACEHOLDER',
      message: 'claiming GPUs failed 7 times in 32 s, the last time with: CUDA did not start.',
    });
    expect(state.tries).toBe(7);
  });

  test('are not retried after a lasting error', async () => {
    const { state } = claiming(new GPUOwnerError('ERR_GPU_UNAVAILABLE', 'there are only 2'), 1_000);
    await vi.advanceTimersByTimeAsync(0);
    expect(state).toMatchObject({ tries: 1, said: [], end: { message: 'there are only 2' } });
  });

  test('are not retried by a worker that is to end', async () => {
    const { state, ending } = claiming(passing, 1_000);
    await vi.advanceTimersByTimeAsync(10_000);
    ending.abort(new Error('the worker ends'));
    await vi.advanceTimersByTimeAsync(0);
    expect(state.end).toMatchObject({ message: 'the worker ends' });
  });
});

test('a worker whose placeholder finds no memory for a moment works when there is some', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['print', 'hello']);
  fixture.machine.set('error=cuda-alloc:2');
  const working = fixture.work();
  // The worker waits, and tries again soon: the GPUs aren't at fault.
  const { waiting } = await working.event('claiming', 2);
  expect(waiting?.gpus[0]?.reason).toMatch(/^the placeholder on GPU 0 failed: CUDA failed with 2 /);
  fixture.machine.set('error=cuda-alloc:0');
  expect(await working.ended).toMatchObject({ why: 'finished' });
  expect(await fixture.results()).toHaveLength(1);
});
