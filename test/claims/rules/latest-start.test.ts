import { describe, expect, test } from 'vitest';
import type { GPUStatus } from '../../../lib/claims/find.ts';
import { latestStarts } from '../../../lib/claims/rules/latest-start.ts';
import { TIMEOUTS } from '../../../lib/platform/timeouts.ts';
import { makeGPU, makeLease } from '../../support/snapshots.ts';

const NOW = Date.parse('2026-01-01T12:00:00Z');
const HOUR = 3_600_000;
const GRACE = TIMEOUTS.grace;

/** GPUs a, b, …: leased for so many hours, for ever (null), free or busy. */
function gpus(...uses: (number | null | 'free' | 'busy')[]): GPUStatus[] {
  return uses.map((use, i) => {
    const gpu = {
      ...makeGPU(),
      uuid: 'abcdef'[i] as string,
      reason: null,
      shares: [],
      idle: null,
      booking: null,
      suspect: null,
    };
    if (typeof use === 'string') return { ...gpu, state: use, lease: null };
    const until = use === null ? {} : { until: new Date(NOW + use * HOUR).toISOString() };
    return { ...gpu, state: 'leased', lease: makeLease(until) };
  });
}

const request = (count: number, uuids: string, hours: number | null = null, scope: string | null = null) => ({
  slot: 0,
  count,
  uuids: [...uuids],
  scope,
  limitMs: hours === null ? null : hours * HOUR,
});

const start = (
  own: ReturnType<typeof request>,
  ahead: ReturnType<typeof request>[],
  all: GPUStatus[],
): number => (latestStarts([...ahead, own], all, NOW).at(-1) ?? 0) - NOW;

describe('the latest start of a request', () => {
  test('is when enough of its GPUs have reached their limits, with the time that their ends may take', () => {
    expect(start(request(1, 'abc'), [], gpus(5, 2, 3))).toBe(2 * HOUR + GRACE);
    expect(start(request(2, 'abc'), [], gpus(5, 2, 3))).toBe(3 * HOUR + GRACE);
    expect(start(request(1, 'a'), [], gpus(5, 2, 3))).toBe(5 * HOUR + GRACE);
  });

  test('needs limits of as many leases as are in the way only', () => {
    expect(start(request(1, 'ab'), [], gpus(null, 2))).toBe(2 * HOUR + GRACE);
    expect(start(request(2, 'ab'), [], gpus(null, 2))).toBe(Infinity);
    expect(start(request(2, 'ab'), [], gpus('free', 2))).toBe(2 * HOUR + GRACE);
    expect(start(request(1, 'ab'), [], gpus('busy', null))).toBe(Infinity);
  });

  test('is unknown where nothing that a limit ends is in the way', () => {
    expect(start(request(1, 'ab'), [], gpus('free', 2))).toBe(Infinity);
  });

  test('is unknown where a limit has been over for longer than an end takes', () => {
    expect(start(request(1, 'a'), [], gpus(-1))).toBe(Infinity);
    expect(start(request(1, 'a'), [], gpus(-0.001))).toBe(GRACE - 0.001 * HOUR);
  });

  test('counts the limits of requests ahead', () => {
    const all = gpus(1, 4);
    expect(start(request(1, 'ab'), [request(1, 'ab', 2)], all)).toBe(3 * HOUR + 2 * GRACE);
    expect(start(request(1, 'ab'), [request(1, 'ab', 2), request(1, 'ab', 9)], all)).toBe(4 * HOUR + GRACE);
    expect(start(request(1, 'ab'), [request(2, 'ab', 2)], all)).toBe(6 * HOUR + 2 * GRACE);
    // The one ahead may run for ever on one of them.
    expect(start(request(1, 'ab'), [request(1, 'ab')], all)).toBe(4 * HOUR + GRACE);
    expect(start(request(2, 'ab'), [request(1, 'ab')], all)).toBe(Infinity);
  });

  test('doesn’t depend on requests for other GPUs, and is unknown after one for some of the same', () => {
    const all = gpus(1, 4, 1);
    expect(start(request(1, 'ab'), [request(1, 'c')], all)).toBe(HOUR + GRACE);
    expect(start(request(1, 'ab'), [request(1, 'bc', 1)], all)).toBe(Infinity);
    expect(start(request(1, 'ab'), [request(1, 'abc', 1)], all)).toBe(Infinity);
    expect(start(request(1, 'ab'), [request(1, 'a', 1)], all)).toBe(Infinity);
  });

  test('is known also if a forged request ahead asks for absurdly much', () => {
    const forged = { ...request(1, 'ab', 1), count: Number.MAX_SAFE_INTEGER, limitMs: 1e300 };
    expect(start(request(1, 'ab'), [forged], gpus(1, 2))).toBe(Infinity);
  });

  test('is unknown inside a job, and such requests don’t matter outside', () => {
    expect(start(request(1, 'a', null, '7'), [], gpus(1))).toBe(Infinity);
    expect(start(request(1, 'a'), [request(1, 'a', 5, '7')], gpus(1))).toBe(HOUR + GRACE);
  });
});
