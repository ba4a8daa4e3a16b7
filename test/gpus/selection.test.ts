import { describe, expect, it } from 'vitest';
import { isPossible, select } from '../../lib/gpus/selection.ts';
import { GIB, makeGPU, refusal } from '../support/snapshots.ts';

const free = (index: number, freeBytes: number | null) => makeGPU(index, { memory: { freeBytes } });
const chosen = (gpus: ReturnType<typeof free>[], count: number) =>
  select(gpus, count)?.map(({ index }) => index) ?? null;

describe('select', () => {
  it('takes the GPUs with most free memory', () => {
    expect(chosen([free(0, 10 * GIB), free(1, 30 * GIB), free(2, 20 * GIB)], 1)).toEqual([1]);
    expect(chosen([free(0, 10 * GIB), free(1, 30 * GIB), free(2, 20 * GIB)], 2)).toEqual([1, 2]);
  });

  it('takes the lowest index where free memory is equal, in whatever order candidates come', () => {
    expect(chosen([free(2, GIB), free(0, GIB), free(1, GIB)], 2)).toEqual([0, 1]);
  });

  it('takes GPUs whose free memory is unknown last, not as if it were 0 or much', () => {
    expect(chosen([free(0, null), free(1, 0), free(2, 5)], 2)).toEqual([1, 2]);
    expect(chosen([free(0, null), free(1, 0)], 2)).toEqual([0, 1]);
  });

  it('prefers a like GPU without a display, but not a far smaller one', () => {
    const display = { ...free(0, 30 * GIB), displayActive: true };
    expect(chosen([display, free(1, 16 * GIB)], 1)).toEqual([1]);
    expect(chosen([display, free(1, 14 * GIB)], 1)).toEqual([0]);
    expect(chosen([{ ...free(0, null), displayActive: true }, free(1, null)], 1)).toEqual([1]);
  });

  it('returns GPUs by index, not by memory', () => {
    expect(chosen([free(0, 10), free(1, 30), free(2, 20)], 3)).toEqual([0, 1, 2]);
  });

  it('returns as many as wanted, or nothing', () => {
    expect(chosen([], 1)).toBeNull();
    expect(chosen([free(0, 1)], 2)).toBeNull();
  });

  it('leaves the candidates as they were', () => {
    const candidates = [free(2, 1), free(0, 3), free(1, 2)];
    select(candidates, 2);
    expect(candidates.map(({ index }) => index)).toEqual([2, 0, 1]);
  });

  it.each([0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY])('refuses to choose %d GPUs', (count) => {
    expect(refusal(() => select([free(0, 1)], count))).toMatch(/^count: /);
  });

  it('leaves no GPU over that is better than one that it took, for any memory', () => {
    for (let seed = 1; seed <= 500; seed++) {
      const gpus = Array.from({ length: 8 }, (_, i) => free(i, (seed * (i + 3) * 7919) % 11 || null));
      const count = (seed % 8) + 1;
      const taken = select(gpus, count) ?? [];
      expect(taken).toHaveLength(count);
      const least = Math.min(...taken.map((gpu) => gpu.memory.freeBytes ?? -1));
      for (const left of gpus.filter((gpu) => !taken.includes(gpu))) {
        expect(left.memory.freeBytes ?? -1).toBeLessThanOrEqual(least);
      }
    }
  });
});

describe('isPossible', () => {
  it('counts what may become free', () => {
    const verdicts = (['free', 'leased', 'busy', 'unavailable', 'excluded'] as const).map((state) => ({
      state,
    }));
    expect(isPossible(3, verdicts)).toBe(true);
    expect(isPossible(4, verdicts)).toBe(false);
    expect(isPossible(1, [])).toBe(false);
  });
});
