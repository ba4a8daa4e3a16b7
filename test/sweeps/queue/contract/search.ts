import { expect, test } from 'vitest';
import type { SearchRecord } from '../../../../lib/sweeps/queue/queue.ts';
import type { QueueFixture } from '../conformance.ts';

/** Tests the record of a search, and the values of its trials. */
export function testSearch(fixture: () => QueueFixture): void {
  const search: SearchRecord = {
    phase: 'exp1',
    trials: 100,
    metric: { name: 'loss', goal: 'minimize' },
    stopping: { rungs: [1, 3, 9], eta: 3, strict: false },
    seed: 7,
    left: { 't-1': null, 't-2': 3 },
    isOver: false,
  };

  test('the last search is kept as it was written', async () => {
    const queue = await fixture().opened();
    expect(await queue.search()).toBe(null);
    await queue.setSearch({ ...search, isOver: true });
    await queue.setSearch(search);
    const other = await fixture().open();
    expect(await other.search()).toEqual(search);
    const grid: SearchRecord = { ...search, metric: null, stopping: null };
    await other.setSearch(grid);
    expect(await queue.search()).toEqual(grid);
  });

  test('a trial gets the values of the others at its step, in its phase', async () => {
    const queue = await fixture().opened();
    const report = (phase: string, id: string, step: number, value: number) =>
      queue.report({ phase, id, step, value });
    expect(await report('exp1', 't-a', 3, 0.5)).toEqual([]);
    expect(await report('exp1', 't-b', 3, -1e-7)).toEqual([0.5]);
    expect(await report('exp1', 't-b', 3, 2)).toEqual([0.5]);
    expect(await report('exp1', 't-c', 3, 1)).toEqual(expect.arrayContaining([0.5, 2]));
    expect(await report('exp1', 't-c', 30, 1)).toEqual([]);
    expect(await report('exp1 b', 't-c', 3, 1)).toEqual([]);
    expect(await report('exp1', 't-d', 30, 1)).toEqual([1]);
  });
}
