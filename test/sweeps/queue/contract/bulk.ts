import { expect, test } from 'vitest';
import { until } from '../../../support/machine.ts';
import { all, type QueueFixture, rowOf, takeFrom, takeWithin, worker } from '../conformance.ts';
import { plainTasks, spec } from '../fixtures/tasks.ts';
import type { RemoteAttempt } from '../remote.ts';

/** Tests what people do with tasks. */
export function testBulk(fixture: () => QueueFixture): void {
  test('cancelled tasks are not given out, whether named by name, id or state, or all', async () => {
    const specs = [0, 1, 2, 3].map((n) => spec({ n }));
    const queue = await fixture().opened(...specs);
    const ids = (await all(queue.tasks())).map(({ task }) => task.id);
    expect(await queue.cancel({ ids: ['exp1_2', ids[0] as string, 'nothing', '', "'"] })).toEqual(
      expect.arrayContaining(['exp1_0', 'exp1_2']),
    );
    const { token, task } = await takeFrom(queue);
    expect(task.name).toBe('exp1_1');
    await queue.complete(token, {});
    expect(await queue.cancel({ ids: ['exp1_1'] })).toEqual([]); // completed
    expect(await queue.cancel('all')).toEqual(['exp1_3']);
    expect(await queue.cancel('all')).toEqual([]);
    expect(await queue.take(worker)).toBeNull();
    expect(await queue.counts()).toEqual({ pending: 0, active: 0, completed: 1, failed: 0, cancelled: 3 });
  });

  test('the attempt of a cancelled task is told within a moment, in whatever process', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    const own = await takeFrom(queue);
    const remote = await fixture().remote();
    const { token } = (await remote.take()) as RemoteAttempt;
    await (await fixture().open()).cancel('all');
    await until(() => own.signal.aborted && remote.aborted(token) !== undefined);
    expect(own.signal.reason).toBeInstanceOf(Error);
    expect(remote.aborted(token)).toMatch(/cancelled/);
    expect(await queue.complete(own.token, {})).toBe(false);
    expect(await remote.ask('complete', token, {})).toBe(false);
    expect(await queue.counts()).toMatchObject({ cancelled: 2, completed: 0 });
  });

  test('a task that was cancelled and retried waits for its last command to be gone', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const other = await fixture().open();
    const { token } = await takeFrom(other);
    await queue.cancel('all');
    expect(await queue.retry({ ids: ['exp1_0'] })).toEqual(['exp1_0']);
    expect(await queue.take(worker)).toBeNull();
    expect(await other.complete(token, { stale: true })).toBe(false);
    // The process has said that it is done with the attempt.
    expect((await takeWithin(queue, fixture().engine.recovery)).start).toBe(1);
    expect(await queue.counts()).toMatchObject({ active: 1, completed: 0 });
  });

  test('failed tasks begin anew', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    for (let times = 0; times < 6; times++) {
      await queue.fail((await takeFrom(queue)).token, { error: 'exit code 1', retry: true });
    }
    expect(await queue.counts()).toMatchObject({ failed: 2 });
    expect(await queue.retry({ state: 'failed' })).toEqual(['exp1_0', 'exp1_1']);
    expect(await rowOf(queue, 'exp1_0')).toMatchObject({
      state: 'pending',
      starts: 0,
      error: null,
      ended: null,
    });
    expect((await takeFrom(queue)).start).toBe(1);
    expect(await queue.retry({ ids: ['exp1_0', 'exp1_1'] })).toEqual([]);
  });

  test('a completed task that is retried loses its result, and its rows are to go', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    const [first, second] = [await takeFrom(queue), await takeFrom(queue)];
    await queue.complete(first.token, { old: true });
    await queue.complete(second.token, { old: true });
    const cursor = (await queue.completions(0, 10)).at(-1)?.sequence as number;
    expect(await queue.retracted()).toEqual([]);
    expect(await queue.retry({ ids: ['exp1_0'] })).toEqual(['exp1_0']);
    const other = await fixture().open();
    expect((await other.retracted()).map(({ name }) => name)).toEqual(['exp1_0']);
    expect((await other.completions(0, 10)).map(({ task }) => task.name)).toEqual(['exp1_1']);
    expect(await queue.complete(first.token, { old: true })).toBe(false);
    // The row that is still in the table is the old one.
    expect(await queue.importResults([{ id: first.task.id, result: { old: true } }])).toEqual([false]);
    const again = await takeFrom(queue);
    expect([again.task.name, again.start]).toEqual(['exp1_0', 1]);
    expect(await queue.complete(again.token, { old: false })).toBe(true);
    // Both have completed it.
    const history = await other.attempts({ taskId: first.task.id });
    expect(history.map(({ token, outcome }) => [token, outcome])).toEqual([
      [first.token, 'completed'],
      [again.token, 'completed'],
    ]);
    for (const { since, ended } of history) expect(ended).toBeGreaterThanOrEqual(since);
    const [completion] = await other.completions(cursor, 10);
    expect(completion?.result).toEqual({ old: false });
    expect(completion?.sequence).toBeGreaterThan(cursor);
    expect(await other.retracted()).toHaveLength(1);
    await other.forgetRetracted([first.task.id, 'nothing']);
    expect(await queue.retracted()).toEqual([]);
  });

  test('the order of completion goes on after the last one was retried', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    await queue.complete((await takeFrom(queue)).token, {});
    const [before] = await queue.completions(0, 1);
    await queue.retry({ state: 'completed' });
    await queue.complete((await takeFrom(queue)).token, {});
    expect(await queue.completions(before?.sequence as number, 1)).toHaveLength(1);
  });

  test('rows of tables complete what has no result, in a pause as well', async () => {
    const queue = await fixture().opened(...[0, 1, 2, 3, 4].map((n) => spec({ n })));
    const rows = await all(queue.tasks());
    const [active, completed, failed, cancelled, pending] = rows.map(({ task }) => task.id) as [
      string,
      string,
      string,
      string,
      string,
    ];
    const attempts = [await takeFrom(queue), await takeFrom(queue), await takeFrom(queue)];
    await queue.complete((attempts[1] as (typeof attempts)[0]).token, { mine: true });
    await queue.fail((attempts[2] as (typeof attempts)[0]).token, { error: 'x', retry: false });
    await queue.cancel({ ids: [cancelled] });
    await queue.pause('person', 'lunch');
    const refused = [active, completed, 't-unknown'].map((id) => ({ id, result: {} }));
    expect(await queue.importResults(refused)).toEqual([false, false, false]);
    for (const id of [failed, cancelled, pending]) {
      expect(await queue.importResults([{ id, result: { accuracy: 1 } }])).toEqual([true]);
      expect(await queue.importResults([{ id, result: { accuracy: 2 } }])).toEqual([false]);
      expect(await rowOf(queue, id)).toMatchObject({ state: 'completed', source: 'table' });
    }
    const sources = (await queue.completions(0, 10)).map(({ source, result }) => [source, result]);
    expect(sources.sort()).toEqual([
      ['table', { accuracy: 1 }],
      ['table', { accuracy: 1 }],
      ['table', { accuracy: 1 }],
      ['worker', { mine: true }],
    ]);
    expect(await queue.take(worker)).toBeNull();
  });

  test('a row of a table is not the result of a task that was completed and then retried', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const { token, task } = await takeFrom(queue);
    await queue.complete(token, { accuracy: 1 });
    await queue.retry({ ids: [task.id] });
    await queue.forgetRetracted([task.id]);
    expect(await queue.importResults([{ id: task.id, result: { accuracy: 1 } }])).toEqual([true]);
    expect(await queue.complete(token, { accuracy: 1 })).toBe(false);
    expect(await queue.complete(token, null)).toBe(false);
  });

  test('many rows can be imported at once', async () => {
    const queue = await fixture().open();
    await queue.enqueue(plainTasks(300));
    const ids = (await all(queue.tasks())).map(({ task }) => task.id);
    await takeFrom(queue);
    const rows = [...ids, ids[7] as string, 't-unknown'].map((id) => ({ id, result: { accuracy: 1 } }));
    const imported = await queue.importResults(rows);
    expect(imported).toEqual([false, ...ids.slice(1).map(() => true), false, false]);
    expect(await queue.importResults([])).toEqual([]);
    expect(await queue.counts()).toMatchObject({ active: 1, completed: 299 });
  });
}
