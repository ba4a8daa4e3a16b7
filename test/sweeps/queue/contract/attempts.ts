import { expect, test } from 'vitest';
import type { Attempt } from '../../../../lib/sweeps/queue/queue.ts';
import { pause, until } from '../../../support/machine.ts';
import { type QueueFixture, rowOf, takeFrom, worker } from '../conformance.ts';
import { spec } from '../fixtures/tasks.ts';

/** Tests what becomes of tasks that were taken. */
export function testAttempts(fixture: () => QueueFixture): void {
  test('each task is given out once, in the order of arrival', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }), spec({ n: 2 }));
    const other = await fixture().open();
    const attempts = [await takeFrom(queue), await takeFrom(other), await takeFrom(queue)];
    expect(attempts.map(({ task }) => task.parameters.n)).toEqual([0, 1, 2]);
    expect(attempts.map(({ start }) => start)).toEqual([1, 1, 1]);
    expect(await queue.take(worker)).toBeNull();
    expect(await other.take(worker)).toBeNull();
    expect(await queue.counts()).toEqual({ pending: 0, active: 3, completed: 0, failed: 0, cancelled: 0 });
  });

  test('several workers of one process may take tasks at the same time', async () => {
    const queue = await fixture().opened(...[0, 1, 2, 3].map((n) => spec({ n })));
    const attempts = await Promise.all([0, 1, 2, 3].map(() => takeFrom(queue)));
    expect(new Set(attempts.map(({ task }) => task.id)).size).toBe(4);
    for (const { token } of attempts) expect(await queue.complete(token, {})).toBe(true);
  });

  test('failed tasks come again after fresh ones, and are started three times at most', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    const order: unknown[] = [];
    for (let start = 1; start <= 3; start++) {
      for (let n = 0; n < 2; n++) {
        const attempt = await takeFrom(queue);
        order.push([attempt.task.parameters.n, attempt.start]);
        const state = await queue.fail(attempt.token, { error: `exit code ${start}`, retry: true });
        expect(state).toBe(start < 3 ? 'pending' : 'failed');
      }
      if (start === 1) await queue.enqueue([spec({ n: 2 })]);
      if (start === 1) {
        const fresh = await takeFrom(queue);
        expect(fresh.task.parameters.n).toBe(2);
        await queue.complete(fresh.token, {});
      }
    }
    expect(order).toEqual([[0, 1], [1, 1], [0, 2], [1, 2], [0, 3], [1, 3]]); // biome-ignore format: as they come
    expect(await queue.take(worker)).toBeNull();
    expect(await rowOf(queue, 'exp1_0')).toMatchObject({ state: 'failed', starts: 3, error: 'exit code 3' });
  });

  test('a task whose result can’t be read is not tried again', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const { token } = await takeFrom(queue);
    expect(await queue.fail(token, { error: 'no JSON', retry: false })).toBe('failed');
    expect(await queue.take(worker)).toBeNull();
  });

  test('a start that was given back does not count', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    for (let times = 0; times < 5; times++) {
      const attempt = await takeFrom(queue);
      expect(attempt.start).toBe(1);
      expect(attempt.task.parameters.n).toBe(0);
      expect(await queue.requeue(attempt.token, 'the GPU was lost')).toBe(true);
      expect(await queue.requeue(attempt.token, 'again')).toBe(false);
    }
    expect(await rowOf(queue, 'exp1_0')).toMatchObject({
      state: 'pending',
      starts: 0,
      error: 'the GPU was lost',
    });
  });

  test('a task that was given back with a delay comes in its time', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const before = Date.now();
    await queue.requeue((await takeFrom(queue)).token, 'busy', 60_000);
    expect(await queue.take(worker)).toBeNull();
    const next = await queue.nextTime();
    expect(next).toBeGreaterThanOrEqual(before + 60_000);
    expect(next).toBeLessThanOrEqual(Date.now() + 60_000);
    await queue.enqueue([spec({ n: 1 })]);
    expect(await queue.nextTime()).toBeNull(); // there is one to be had
    const { token } = await takeFrom(queue);
    expect(await queue.nextTime()).toBe(next);
    const given = Date.now();
    await queue.requeue(token, 'busy', 1_000);
    let again: Attempt | null = null;
    await until(async () => {
      again = await queue.take(worker);
      return again !== null;
    });
    expect(Date.now()).toBeGreaterThanOrEqual(given + 1_000);
    expect(again).toMatchObject({ task: { parameters: { n: 1 } } });
    expect(await queue.nextTime()).toBe(next);
    await queue.cancel({ ids: ['exp1_0'] });
    expect(await queue.nextTime()).toBeNull();
  });

  test('the result is there with the completion, once', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    const [first, second] = [await takeFrom(queue), await takeFrom(queue)];
    expect(await queue.complete(second.token, { accuracy: 0.25 })).toBe(true);
    await pause(2); // within a millisecond, any order will do
    expect(await queue.complete(first.token, { accuracy: 0.5 })).toBe(true);
    const other = await fixture().open();
    const completions = await other.completions(0, 10);
    expect(completions.map(({ task, result, source }) => [task.parameters.n, result, source])).toEqual([
      [1, { accuracy: 0.25 }, 'worker'],
      [0, { accuracy: 0.5 }, 'worker'],
    ]);
    // A worker that hasn't heard the answer says it again.
    expect(await other.complete(first.token, { accuracy: 0.5 })).toBe(true);
    expect(await other.complete(first.token, { accuracy: 0.75 })).toBe(false);
    expect(await other.fail(first.token, { error: 'late', retry: true })).toBeNull();
    expect(await other.requeue(first.token, 'late')).toBe(false);
    expect(await other.completions(0, 10)).toEqual(completions);
    expect(await rowOf(other, 'exp1_0')).toMatchObject({ state: 'completed', source: 'worker', error: null });
  });

  test('tokens are good in other processes, and those that nobody has given out are not', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    const remote = await fixture().remote();
    const [first, second] = [await takeFrom(queue), await takeFrom(queue)];
    expect(await remote.ask('complete', first.token, { a: 1 })).toBe(true);
    expect(await remote.ask('fail', second.token, { error: 'x', retry: false })).toBe('failed');
    for (const token of ['', '1', `${first.token}0`, "' OR 1=1 --", `${first.token}\0`, '__proto__']) {
      expect(await queue.complete(token, {})).toBe(false);
      expect(await queue.fail(token, { error: 'x', retry: true })).toBeNull();
    }
    expect(await queue.counts()).toMatchObject({ completed: 1, failed: 1 });
  });

  test('no task is given out in a pause, and what runs goes on', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    const { token } = await takeFrom(queue);
    const other = await fixture().open();
    await other.pause('failures', 'three tasks failed');
    expect(await queue.take(worker)).toBeNull();
    expect(await queue.paused()).toMatchObject({ by: 'failures', message: 'three tasks failed' });
    await other.pause('person', 'lunch');
    await other.pause('failures', 'more failed');
    expect(await queue.paused()).toMatchObject({ by: 'person', message: 'lunch' });
    expect(await queue.complete(token, {})).toBe(true);
    expect(await other.take(worker)).toBeNull();
    await queue.resume();
    expect(await other.paused()).toBeNull();
    expect((await takeFrom(other)).task.parameters.n).toBe(1);
  });

  test('attempts are listed with their workers and logs', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const first = await takeFrom(queue);
    expect(await queue.attempts('living')).toEqual([
      {
        token: first.token,
        taskId: first.task.id,
        taskName: 'exp1_0',
        worker,
        since: expect.any(Number),
        ended: null,
        outcome: null,
        error: null,
        log: null,
      },
    ]);
    await queue.setLog(first.token, { path: 'results/worker_gpu0.log', from: 10, to: null });
    await queue.fail(first.token, { error: 'exit code 1', retry: true });
    await queue.setLog(first.token, { path: 'results/worker_gpu0.log', from: 10, to: 99 });
    const second = await takeFrom(queue);
    expect((await queue.attempts('living')).map(({ token }) => token)).toEqual([second.token]);
    const history = await queue.attempts({ taskId: first.task.id });
    expect(history.map(({ outcome, error, log }) => [outcome, error, log])).toEqual([
      ['failed', 'exit code 1', { path: 'results/worker_gpu0.log', from: 10, to: 99 }],
      [null, null, null],
    ]);
    expect(await queue.attempts({ taskId: 't-nothing' })).toEqual([]);
  });

  test('changes by other processes are noticed, and nothing else is', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const remote = await fixture().remote();
    await queue.changed(0);
    const started = performance.now();
    await queue.changed(300);
    expect(performance.now() - started).toBeGreaterThan(250);
    const change = queue.changed(100_000);
    await pause(50);
    await remote.ask('pause', 'person', 'tea');
    await change;
    await remote.ask('resume');
    await queue.changed(100_000); // changes since the last call count
    const own = queue.changed(100_000);
    await queue.pause('person', 'coffee');
    await own;
    const controller = new AbortController();
    const aborted = queue.changed(100_000, controller.signal);
    controller.abort();
    await aborted;
    expect(performance.now() - started).toBeLessThan(60_000);
  });

  test('a change that one waiter has noticed is news for others of its process that have looked before', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const other = await fixture().open();
    await queue.changed(0);
    const seen = queue.changeCount;
    expect((await queue.counts()).pending).toBe(1); // the look of an idle worker
    const another = queue.changed(100_000);
    await other.pause('person', 'tea');
    await another;
    const started = performance.now();
    await queue.changed(100_000, undefined, seen);
    expect(performance.now() - started).toBeLessThan(60_000);
    await queue.changed(300, undefined, queue.changeCount);
    expect(performance.now() - started).toBeGreaterThan(250);
  });
}
