import { describe, expect, test } from 'vitest';
import { backfilled } from '../../../lib/claims/rules/backfill.ts';
import type { LimitedRequest } from '../../../lib/claims/rules/latest-start.ts';
import { makeLease } from '../../support/snapshots.ts';
import { processorTime } from '../../support/time.ts';

const NOW = Date.parse('2026-01-01T12:00:00Z');
const HOUR = 3_600_000;

/** GPU a is free, b is leased for eight hours, and the first in the queue waits for both. */
const gpus = [
  { uuid: 'a', state: 'free' as const, lease: null },
  {
    uuid: 'b',
    state: 'leased' as const,
    lease: makeLease({ until: new Date(NOW + 8 * HOUR).toISOString() }),
  },
];
const ask = (slot: number, count: number, hours: number | null, uuids = ['a', 'b']) => ({
  slot,
  count,
  uuids,
  scope: null,
  limitMs: hours === null ? null : hours * HOUR,
});
const lent = (...requests: ReturnType<typeof ask>[]) =>
  Object.fromEntries(backfilled(['a'], [ask(0, 2, null), ...requests], gpus, NOW));

test('of the requests that may use a kept GPU, the first in the order gets it', () => {
  expect(lent(ask(1, 1, 2), ask(2, 1, 4))).toEqual({ 1: ['a'] });
  expect(lent(ask(1, 1, 4), ask(2, 1, 2))).toEqual({ 1: ['a'] });
});

test('those that would be late, or need other GPUs, are in nobody’s way', () => {
  expect(lent(ask(1, 1, 9), ask(2, 1, 4))).toEqual({ 2: ['a'] });
  expect(lent(ask(1, 1, null), ask(2, 1, 4))).toEqual({ 2: ['a'] });
  expect(lent(ask(1, 1, 2, ['b']), ask(2, 1, 4, ['a']))).toEqual({ 2: ['a'] });
  expect(lent(ask(1, 1, 9), ask(2, 1, 10), ask(3, 1, 8))).toEqual({ 3: ['a'] });
});

describe('a preemptible request', () => {
  const preemptible = (...request: Parameters<typeof ask>) => ({
    ...ask(...request),
    tag: { class: 'preemptible' as const },
  });
  const lentBehind = (first: LimitedRequest, ...requests: LimitedRequest[]) =>
    Object.fromEntries(backfilled(['a'], [first, ...requests], gpus, NOW));

  test('uses what is kept for one that waits for another GPU, without a time limit', () => {
    expect(lentBehind(ask(0, 2, null), preemptible(1, 1, null), preemptible(2, 1, null))).toEqual({
      1: ['a'],
    });
    expect(lentBehind(ask(0, 2, null), ask(1, 1, null), preemptible(2, 1, null))).toEqual({});
    expect(lentBehind(ask(0, 2, null), ask(1, 2, null), preemptible(2, 1, null))).toEqual({ 2: ['a'] });
  });

  test.each([
    ['could start now', { count: 1 }],
    ['is preemptible, too', { tag: { class: 'preemptible' as const } }],
    ['has others give way', { preempts: [17] }],
    ['wants a share', { memory: { bytes: 1, percent: null } as never }],
    ['has a damaged record', { tag: null }],
  ])('stays behind one that %s', (_, first) => {
    expect(lentBehind({ ...ask(0, 2, null), ...first }, preemptible(1, 1, null))).toEqual({});
  });
});

test('a thousand requests that would all be late take some milliseconds', async () => {
  const late = Array.from({ length: 1_000 }, (_, i) => ask(i + 1, 1, 9 + i / 1_000));
  expect(await processorTime(() => expect(lent(...late)).toEqual({}))).toBeLessThan(500);
});
