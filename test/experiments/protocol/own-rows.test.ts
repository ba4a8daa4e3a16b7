import { expect, test } from 'vitest';
import { OwnRows } from '../../../lib/experiments/protocol/own-rows.ts';
import type { AttemptInfo } from '../../../lib/experiments/queue/queue.ts';
import type { RowsOfTask } from '../../../lib/experiments/results/result-tables.ts';

/** A table whose rows fit three tasks, and what is known of them. */
class Bench {
  rows: number[] = [];
  /** Tasks that are known to have written one of them. */
  covered = 0;
  own: RowsOfTask['own'] = null;
  living: string[] = [];
  readonly finder = new OwnRows({
    queue: { attempts: async () => this.living.map(attempt) },
    rowsOf: async (taskId) => ({
      own: this.own,
      shared: this.rows.map((acc) => ({ content: String(acc), result: { acc } })),
      spare: this.rows.length - this.covered,
      rivals: new Set(['a', 'b', 'c'].filter((each) => each !== taskId)),
    }),
  });

  async begin(...tasks: string[]): Promise<void> {
    this.living.push(...tasks);
    for (const task of tasks) await this.finder.begin(attempt(task));
  }

  resultOf(task: string, isLocal = true) {
    return this.finder.resultOf(attempt(task), isLocal);
  }

  end(task: string): void {
    this.living = this.living.filter((each) => each !== task);
    this.finder.end(task);
  }
}

function attempt(taskId: string): AttemptInfo {
  const taker = { worker: 'gpu0', host: 'host', pid: 0, gpus: [] };
  const none = { ended: null, outcome: null, submitted: false, error: null, log: null };
  return { token: taskId, taskId, taskName: taskId, taker, since: 0, ...none };
}

test('the only row that is new is its own, whatever was there before', async () => {
  const bench = new Bench();
  bench.rows = [5, 5];
  await bench.begin('a');
  expect(await bench.resultOf('a')).toBeNull();
  bench.rows.push(5);
  expect(await bench.resultOf('a')).toEqual({ acc: 5 });
  bench.own = { acc: 7 };
  expect(await bench.resultOf('a')).toEqual({ acc: 7 });
});

test('of two that end together, nobody gets a row, though there is only one', async () => {
  const bench = new Bench();
  await bench.begin('a', 'b');
  bench.rows = [5];
  expect(await Promise.all([bench.resultOf('a'), bench.resultOf('b')])).toEqual([{}, {}]);
});

test('while another one runs, it is waited for: a row that comes, and one that goes, make it uncertain', async () => {
  const bench = new Bench();
  await bench.begin('a', 'b');
  bench.rows = [5];
  expect(await bench.resultOf('a')).toEqual({ acc: 5 });
  for (const [rows, result] of [
    [[5, 6], {}],
    [[6], {}],
    [[], null],
  ] as const) {
    bench.rows = [5];
    const asked = bench.resultOf('a');
    setTimeout(() => {
      bench.rows = [...rows];
    }, 100);
    expect(await asked).toEqual(result);
  }
});

test('several new ones, and those of other machines, are only counted, and no more than there are', async () => {
  const bench = new Bench();
  await bench.begin('a', 'b');
  bench.rows = [5, 6];
  expect(await bench.resultOf('a')).toEqual({});
  bench.end('a');
  bench.covered = 1;
  expect(await bench.resultOf('b')).toEqual({});
  bench.covered = 2;
  expect(await bench.resultOf('b')).toBeNull();
  await bench.begin('c');
  bench.rows.push(7);
  expect(await bench.resultOf('c', false)).toEqual({});
  // Given out by a manager that is gone: what was there before isn't known.
  bench.finder.end('c');
  expect(await bench.resultOf('c')).toEqual({});
});
