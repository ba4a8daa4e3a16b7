import { expect, test } from 'vitest';
import { type QueueFixture, rowOf, takeFrom, worker } from '../conformance.ts';
import { spec } from '../fixtures/tasks.ts';

/** Tests how often tasks are started again by themselves. */
export function testReruns(fixture: () => QueueFixture): void {
  const without = (n: number) => ({ ...spec({ n }), retries: 0 });

  test('a task without retries fails at once, and a person starts it again', async () => {
    const queue = await fixture().opened(without(0), spec({ n: 1 }));
    const first = await takeFrom(queue);
    expect([first.task.name, first.isOnce]).toEqual(['exp1_0', true]);
    expect(await queue.fail(first.token, { error: 'exit code 1', retry: true })).toBe('failed');
    const other = await takeFrom(queue);
    expect([other.task.name, other.isOnce]).toEqual(['exp1_1', false]);
    expect(await queue.fail(other.token, { error: 'exit code 1', retry: true })).toBe('pending');
    await queue.cancel({ ids: [other.task.id] });
    expect(await queue.take(worker)).toBeNull();
    expect(await queue.retry({ state: 'failed' })).toEqual(['exp1_0']);
    const again = await takeFrom(queue);
    expect([again.task.name, again.isOnce]).toEqual(['exp1_0', true]);
    // A task that was not started is given back as ever.
    expect(await queue.requeue(again.token, 'not started')).toBe(true);
    expect(await queue.complete((await takeFrom(queue)).token, { a: 1 })).toBe(true);
    expect(await rowOf(queue, 'exp1_0')).toMatchObject({ state: 'completed' });
  });

  test.each([1, 4])('a task with %i retries has so many starts more', async (retries) => {
    const queue = await fixture().opened({ ...spec({ n: 0 }), retries });
    for (let start = 1; start <= retries + 1; start++) {
      const attempt = await takeFrom(queue);
      expect([attempt.start, attempt.isOnce]).toEqual([start, false]);
      const state = start <= retries ? 'pending' : 'failed';
      expect(await queue.fail(attempt.token, { error: 'exit code 1', retry: true })).toBe(state);
    }
    expect(await queue.take(worker)).toBeNull();
  });

  test('the number of retries stays as it was said last', async () => {
    const queue = await fixture().opened(without(0));
    await queue.enqueue([spec({ n: 0 })]);
    const first = await takeFrom(queue);
    expect(first.isOnce).toBe(true);
    await queue.requeue(first.token, 'a test');
    await queue.enqueue([{ ...spec({ n: 0 }), retries: 2 }]);
    const second = await takeFrom(queue);
    expect(second.isOnce).toBe(false);
    expect(await queue.fail(second.token, { error: 'exit code 1', retry: true })).toBe('pending');
  });

  test('a task without retries fails when its worker was killed, and a person starts it again', async () => {
    const { recovery } = fixture().engine;
    const queue = await fixture().opened(without(0));
    const other = await fixture().remote();
    const { token } = await other.ask<{ token: string }>('take');
    await other.kill();
    for (const end = performance.now() + 2 * recovery; ; ) {
      expect(await queue.take(worker)).toBeNull();
      if ((await rowOf(queue, 'exp1_0')).state === 'failed') break;
      if (performance.now() > end) throw new Error('nobody has noticed it');
      await queue.changed(200);
    }
    expect((await rowOf(queue, 'exp1_0')).error).toMatch(/ended silently/);
    expect(await queue.attempts('living')).toEqual([]);
    // A worker that was only cut off says so when it is back.
    expect(await queue.requeue(token, 'it was cut off')).toBe(false);
    expect((await rowOf(queue, 'exp1_0')).state).toBe('failed');
    expect(await queue.retry({ state: 'failed' })).toEqual(['exp1_0']);
    expect(await queue.complete((await takeFrom(queue)).token, { a: 1 })).toBe(true);
  });
}
