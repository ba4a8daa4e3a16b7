import { expect, test } from 'vitest';
import { OwnRows } from '../../../lib/experiments/protocol/own-rows.ts';
import type { AttemptInfo } from '../../../lib/experiments/queue/queue.ts';
import type { RowsOfTask } from '../../../lib/experiments/results/result-tables.ts';

/** A table whose rows fit three tasks, and what is known of them. */
class OwnRowsFixture {
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
  const fixture = new OwnRowsFixture();
  fixture.rows = [5, 5];
  await fixture.begin('a');
  expect(await fixture.resultOf('a')).toBeNull();
  fixture.rows.push(5);
  expect(await fixture.resultOf('a')).toEqual({ acc: 5 });
  fixture.own = { acc: 7 };
  expect(await fixture.resultOf('a')).toEqual({ acc: 7 });
});

test('two tasks that end together get no row, though there is only one', async () => {
  const fixture = new OwnRowsFixture();
  await fixture.begin('a', 'b');
  fixture.rows = [5];
  expect(await Promise.all([fixture.resultOf('a'), fixture.resultOf('b')])).toEqual([{}, {}]);
});

test('while another one runs, it is waited for: a row that comes, and one that goes, make it uncertain', async () => {
  const fixture = new OwnRowsFixture();
  await fixture.begin('a', 'b');
  fixture.rows = [5];
  expect(await fixture.resultOf('a')).toEqual({ acc: 5 });
  for (const [rows, result] of [
    [[5, 6], {}],
    [[6], {}],
    [[], null],
  ] as const) {
    fixture.rows = [5];
    const asked = fixture.resultOf('a');
    setTimeout(() => {
      fixture.rows = [...rows];
    }, 100);
    expect(await asked).toEqual(result);
  }
});

test('several new ones, and those of other machines, are only counted, and no more than there are', async () => {
  const fixture = new OwnRowsFixture();
  await fixture.begin('a', 'b');
  fixture.rows = [5, 6];
  expect(await fixture.resultOf('a')).toEqual({});
  fixture.end('a');
  fixture.covered = 1;
  expect(await fixture.resultOf('b')).toEqual({});
  fixture.covered = 2;
  expect(await fixture.resultOf('b')).toBeNull();
  await fixture.begin('c');
  fixture.rows.push(7);
  expect(await fixture.resultOf('c', false)).toEqual({});
  // Given out by a manager that is gone: what was there before isn't known.
  fixture.finder.end('c');
  expect(await fixture.resultOf('c')).toEqual({});
});
