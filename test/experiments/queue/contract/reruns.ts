import { expect, test } from 'vitest';
import { type QueueFixture, rowOf, takeFrom, worker } from '../conformance.ts';
import { spec } from '../fixtures/tasks.ts';

/** Tests tasks that are started again only when a person says. */
export function testReruns(fixture: () => QueueFixture): void {
  const never = (n: number) => ({ ...spec({ n }), rerun: 'never' as const });

  test('a task that is never started again by itself fails at once, and a person starts it again', async () => {
    const queue = await fixture().opened(never(0), spec({ n: 1 }));
    const once = await takeFrom(queue);
    expect([once.task.name, once.isOnce]).toEqual(['exp1_0', true]);
    expect(await queue.giveUp('all')).toEqual([]); // the worker is heard of
    expect(await queue.fail(once.token, { error: 'exit code 1', retry: true })).toBe('failed');
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

  test('whether a task is started again stays as it was said last', async () => {
    const queue = await fixture().opened(never(0));
    await queue.enqueue([spec({ n: 0 })]);
    const first = await takeFrom(queue);
    expect(first.isOnce).toBe(true);
    await queue.requeue(first.token, 'a test');
    await queue.enqueue([{ ...spec({ n: 0 }), rerun: 'auto' }]);
    const second = await takeFrom(queue);
    expect(second.isOnce).toBe(false);
    expect(await queue.fail(second.token, { error: 'exit code 1', retry: true })).toBe('pending');
  });

  test('a task whose worker was killed is not started again, and its attempt shows since when it is silent', async () => {
    const { recovery, seesProcesses } = fixture().engine;
    const queue = await fixture().opened(never(0));
    const other = await fixture().remote();
    const { token } = await other.ask<{ token: string }>('take');
    await other.kill();
    for (const end = performance.now() + 2 * recovery; ; ) {
      expect(await queue.take(worker)).toBeNull();
      const [living] = await queue.attempts('living');
      if (seesProcesses ? living === undefined : living?.silentSince !== undefined) break;
      if (performance.now() > end) throw new Error('nobody has noticed it');
      await queue.changed(200);
    }
    // The kernel knows that nothing of it lives. Redis doesn't.
    expect((await rowOf(queue, 'exp1_0')).state).toBe(seesProcesses ? 'failed' : 'active');
    if (seesProcesses) return;
    await queue.endLost();
    expect(await queue.take(worker)).toBeNull();
    expect(await queue.giveUp({ ids: ['exp1_0'] })).toEqual(['exp1_0']);
    expect(await queue.giveUp('all')).toEqual([]);
    expect(await rowOf(queue, 'exp1_0')).toMatchObject({
      state: 'failed',
      error: expect.stringContaining('given up by a person'),
    });
    expect(await queue.attempts('living')).toEqual([]);
    // The worker lived after all, and has a result.
    expect(await queue.complete(token, { a: 1 })).toBe(true);
    expect(await rowOf(queue, 'exp1_0')).toMatchObject({ state: 'completed', error: null });
  });

  test('a cancelled task of a lost host can be started again once a person has given it up', async () => {
    const { seesProcesses, recovery } = fixture().engine;
    if (seesProcesses) return;
    const queue = await fixture().opened(never(0));
    const other = await fixture().remote();
    await other.ask('take');
    await other.kill();
    for (const end = performance.now() + 2 * recovery; ; ) {
      const [living] = await queue.attempts('living');
      if (living?.silentSince !== undefined) break;
      if (performance.now() > end) throw new Error('nobody has noticed it');
      await queue.changed(200);
    }
    await queue.cancel('all');
    await queue.retry({ state: 'cancelled' });
    expect(await queue.take(worker)).toBeNull(); // something of it may live
    expect(await queue.giveUp('all')).toEqual(['exp1_0']);
    expect((await takeFrom(queue)).task.name).toBe('exp1_0');
  });
}
