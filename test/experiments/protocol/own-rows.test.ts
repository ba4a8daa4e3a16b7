import { setTimeout as sleep } from 'node:timers/promises';
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
  isReadable = true;
  living: string[] = [];
  readonly finder = new OwnRows({
    queue: { attempts: async () => this.living.map(attempt) },
    rowsOf: async (taskId) =>
      this.isReadable
        ? {
            own: this.own,
            unassigned: this.rows.map((acc) => ({ content: String(acc), result: { acc } })),
            left: this.rows.length - this.covered,
            competingTaskIds: new Set(['a', 'b', 'c'].filter((each) => each !== taskId)),
          }
        : null,
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
  const worker = { name: 'gpu0', host: 'host', pid: 0, gpus: [] };
  const none = { ended: null, outcome: null, submitted: false, error: null, log: null };
  return { token: taskId, taskId, taskName: taskId, worker, since: 0, ...none };
}

test('the only new row is the task’s own, whatever was there before', async () => {
  const fixture = new OwnRowsFixture();
  fixture.rows = [5, 5];
  await fixture.begin('a');
  expect(await fixture.resultOf('a')).toBeNull();
  fixture.rows.push(5);
  expect(await fixture.resultOf('a')).toEqual({ acc: 5 });
  fixture.own = { acc: 7 };
  expect(await fixture.resultOf('a')).toEqual({ acc: 7 });
});

test('a row that equals the one before it is its own task’s', async () => {
  const fixture = new OwnRowsFixture();
  await fixture.begin('a');
  fixture.rows = [5];
  expect(await fixture.resultOf('a')).toEqual({ acc: 5 });
  // The next task is given out before the row of a is filled in.
  await fixture.begin('b');
  fixture.end('a');
  fixture.rows = [5]; // that of b
  expect(await fixture.resultOf('b')).toEqual({ acc: 5 });
});

test.concurrent('an equal row is its own task’s, also if that task begins during the search for the row before', async ({
  expect,
}) => {
  const fixture = new OwnRowsFixture();
  await fixture.begin('a', 'b');
  fixture.rows = [5];
  const asked = fixture.resultOf('a'); // b may have written it
  await sleep(100);
  await fixture.begin('c');
  expect(await asked).toEqual({ acc: 5 });
  fixture.end('a');
  fixture.finder.excludeAsCandidate('b');
  fixture.end('b');
  fixture.rows = [5]; // that of c
  expect(await fixture.resultOf('c')).toEqual({ acc: 5 });
});

test('two tasks that end together get no row, though there is only one', async () => {
  const fixture = new OwnRowsFixture();
  await fixture.begin('a', 'b');
  fixture.rows = [5];
  expect(await Promise.all([fixture.resultOf('a'), fixture.resultOf('b')])).toEqual([{}, {}]);
});

test.concurrent('a search waits for another running task: a row that comes, or one that goes, makes the result uncertain', async ({
  expect,
}) => {
  const cases = [
    [[5], { acc: 5 }],
    [[5, 6], {}],
    [[6], {}],
    [[], null],
  ] as const;
  await Promise.all(
    cases.map(async ([rows, result]) => {
      const fixture = new OwnRowsFixture();
      await fixture.begin('a', 'b');
      fixture.rows = [5];
      const asked = fixture.resultOf('a');
      setTimeout(() => {
        fixture.rows = [...rows];
      }, 100);
      expect(await asked).toEqual(result);
    }),
  );
});

/** Tasks a and b have run, and b has written its row over that of a. */
async function overwritten(): Promise<OwnRowsFixture> {
  const fixture = new OwnRowsFixture();
  await fixture.begin('a', 'b');
  fixture.rows = [5];
  return fixture;
}

test.concurrent('a task that completes up to two seconds after its row makes the row uncertain', async ({
  expect,
}) => {
  const fixture = await overwritten();
  const asked = fixture.resultOf('a');
  await sleep(1_600);
  expect(await fixture.resultOf('b')).toEqual({});
  expect(await asked).toEqual({});
});

test.concurrent('a task that completes later than that gets none', async ({ expect }) => {
  const fixture = await overwritten();
  expect(await fixture.resultOf('a')).toEqual({ acc: 5 });
  fixture.end('a');
  fixture.rows = []; // the row has its seed now
  expect(await fixture.resultOf('b')).toBeNull();
});

test('time in which this process stands still is none in which it waits for others', async () => {
  const fixture = await overwritten();
  const asked = fixture.resultOf('a');
  await sleep(300);
  // Both processes are held up. Messages that the other one has sent meanwhile take some turns to be read.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2_500);
  await sleep(50);
  expect(await fixture.resultOf('b')).toEqual({});
  expect(await asked).toEqual({});
});

test('a task that ended without telling its row makes another row uncertain', async () => {
  // The table can't be read at that moment.
  const unread = await overwritten();
  unread.isReadable = false;
  expect(await unread.resultOf('b')).toBeNull();
  unread.end('b');
  unread.isReadable = true;
  expect(await unread.resultOf('a')).toEqual({});
  // The task is cancelled, and nothing is heard of it.
  const cancelled = await overwritten();
  cancelled.end('b');
  expect(await cancelled.resultOf('a')).toEqual({});
  // A manager that is gone has given it out, and a row from before is left.
  const before = new OwnRowsFixture();
  before.rows = [1];
  before.living = ['b'];
  await before.begin('a');
  before.rows.push(5);
  expect(await before.resultOf('b')).toEqual({});
  before.end('b');
  before.covered = 1;
  expect(await before.resultOf('a')).toEqual({});
});

test('a task that has sent its result, has failed, or has its own row makes no row uncertain', async () => {
  const failed = await overwritten();
  failed.finder.excludeAsCandidate('b');
  failed.end('b');
  expect(await failed.resultOf('a')).toEqual({ acc: 5 });
  const told = await overwritten();
  told.own = { acc: 7 };
  expect(await told.resultOf('b')).toEqual({ acc: 7 });
  told.end('b');
  told.own = null;
  expect(await told.resultOf('a')).toEqual({ acc: 5 });
});

test('a request that is repeated gets the same answer as the first', async () => {
  const fixture = await overwritten();
  const answers = [fixture.resultOf('a'), fixture.resultOf('a')];
  expect(await Promise.all(answers)).toEqual([{ acc: 5 }, { acc: 5 }]);
});

test('several new rows, and those of other machines, are only counted, and no more than there are', async () => {
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
