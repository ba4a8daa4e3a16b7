import { describe, expect, test } from 'vitest';
import { StallDetector } from '../../lib/claims/queue/stall-detector.ts';
import { findBlockers, type GpuRequest, reservedFor } from '../../lib/claims/rules/turn.ts';

const ALL = ['a', 'b', 'c', 'd'];

function wish(
  place: number,
  count: number,
  uuids: readonly string[] = ALL,
  scope: string | null = null,
): GpuRequest {
  return { slot: place, count, uuids, scope };
}

function turn(own: GpuRequest, ahead: readonly GpuRequest[]) {
  return {
    reserved: [...reservedFor(own.uuids, own.scope, ahead).keys()].sort(),
    blockers: findBlockers(own, ahead.toReversed()).map(({ slot: place }) => place),
  };
}

describe('the order of waiters', () => {
  test('the first waiter may take any free GPU', () => {
    expect(turn(wish(1, 4), [])).toEqual({ reserved: [], blockers: [] });
  });

  test('a small request doesn’t overtake a large one that could use the same GPUs', () => {
    expect(turn(wish(2, 1), [wish(1, 4)])).toEqual({ reserved: ALL, blockers: [1] });
  });

  test('a waiter that insists on a GPU doesn’t keep the others idle', () => {
    expect(turn(wish(2, 3), [wish(1, 1, ['a'])])).toEqual({ reserved: ['a'], blockers: [] });
    expect(turn(wish(2, 4), [wish(1, 1, ['a'])])).toEqual({ reserved: ['a'], blockers: [1] });
  });

  test('each waiter waits for the nearest one that is in its way, not for those that aren’t', () => {
    expect(turn(wish(9, 1), [wish(1, 1), wish(2, 1), wish(3, 1)]).blockers).toEqual([3]);
    expect(turn(wish(9, 1), [wish(1, 1), wish(2, 1), wish(3, 1, ['a'])]).blockers).toEqual([2]);
    expect(turn(wish(9, 1, ['d']), [wish(1, 1, ['d']), wish(2, 1, ['a'])]).blockers).toEqual([1]);
  });

  test('where several are in the way only together, the end of any of them is waited for', () => {
    const ahead = [wish(1, 1, ['a', 'b']), wish(2, 1, ['c']), wish(3, 1, ['d'])];
    expect(turn(wish(9, 2), ahead)).toEqual({ reserved: ALL, blockers: [3, 2, 1] });
    expect(turn(wish(9, 1, ['c', 'd']), ahead).blockers).toEqual([3, 2]);
  });

  test('a waiter for other GPUs is not in the way, also if not all its GPUs are known', () => {
    expect(turn(wish(9, 3, ['a', 'b']), [wish(1, 1, ['c'])]).blockers).toEqual([]);
    expect(turn(wish(9, 3, ['a', 'b']), [wish(1, 1, ['b']), wish(2, 1, ['c'])]).blockers).toEqual([1]);
  });

  test('no more of the wait queue is read than necessary', () => {
    function* endless(): Generator<GpuRequest> {
      for (let place = 1; ; place++) yield wish(place, 1);
    }
    expect(reservedFor(ALL, null, endless()).size).toBe(4);
    expect(findBlockers(wish(0, 1), endless())).toHaveLength(1);
    expect(reservedFor([], null, endless()).size).toBe(0);
  });

  test('each job has its own wait queue', () => {
    expect(turn(wish(2, 1, ALL, 'job'), [wish(1, 4)])).toEqual({ reserved: [], blockers: [] });
    expect(turn(wish(2, 1, ALL, 'job'), [wish(1, 4, ALL, 'job')]).blockers).toEqual([1]);
  });
});

describe('the stall detector', () => {
  const passed = (detector: StallDetector, at: number) => [...detector.stalled(0, at)];

  test('waiters that left a free GPU for seconds are skipped, all of them at once', () => {
    const detector = new StallDetector();
    const ahead = [wish(1, 1), wish(2, 1), wish(3, 1)];
    detector.observe(ahead, new Set(['a']), 0);
    expect(passed(detector, 2_499)).toEqual([]);
    expect(passed(detector, 2_500)).toEqual([1, 2, 3]);
  });

  test('a waiter for more than is free is not skipped, nor are later ones', () => {
    const detector = new StallDetector();
    detector.observe([wish(1, 4), wish(2, 1)], new Set(['a', 'b', 'c']), 0);
    expect(passed(detector, 60_000)).toEqual([]);
  });

  test('the patience restarts when there is nothing to take for a while', () => {
    const detector = new StallDetector();
    detector.observe([wish(1, 1)], new Set(['a']), 0);
    detector.observe([wish(1, 1)], new Set(), 3_000);
    detector.observe([wish(1, 1)], new Set(['a']), 4_000);
    expect(passed(detector, 6_499)).toEqual([]);
    expect(passed(detector, 6_500)).toEqual([1]);
  });

  test('a waiter that rested when the GPU came free has the time to start Node.js', () => {
    const detector = new StallDetector();
    detector.observe([{ ...wish(1, 1), isIdle: true }, wish(2, 1)], new Set(['a']), 0);
    detector.observe([wish(1, 1), wish(2, 1)], new Set(['a']), 1_000);
    expect(passed(detector, 5_499)).toEqual([2]);
    expect(passed(detector, 5_500)).toEqual([1, 2]);
  });

  test('later waiters are skipped later', () => {
    const detector = new StallDetector();
    detector.observe([wish(1, 1)], new Set(['a']), 0);
    expect([...detector.stalled(50, 3_499)]).toEqual([]);
    expect([...detector.stalled(50, 3_500)]).toEqual([1]);
  });
});
