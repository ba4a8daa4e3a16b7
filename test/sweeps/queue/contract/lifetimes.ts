import { expect, test } from 'vitest';
import type { Attempt } from '../../../../lib/sweeps/queue/queue.ts';
import { pause } from '../../../support/machine.ts';
import { WAIT_TIMEOUT_MS } from '../../../support/time.ts';
import { type QueueFixture, rowOf, takeFrom, takeWithin, worker } from '../conformance.ts';
import { spec } from '../fixtures/tasks.ts';
import type { RemoteAttempt } from '../remote.ts';

/** Attempts of clients that give no sign of life. */
export function testLifetimes(fixture: () => QueueFixture): void {
  test('tokens survive the process that gave them out', async () => {
    const remote = await fixture().remote();
    await remote.ask('enqueue', 1, 'exp1');
    const { token, descriptors } = (await remote.take({ lifetime: 60_000 })) as RemoteAttempt;
    expect(descriptors).toEqual([]);
    await remote.kill();
    const queue = await fixture().open();
    expect(await queue.take(worker)).toBeNull();
    expect((await queue.attempts('living')).map((attempt) => attempt.token)).toEqual([token]);
    expect(await queue.complete(token, { a: 1 })).toBe(true);
    expect((await queue.completions(0, 10)).map(({ result }) => result)).toEqual([{ a: 1 }]);
  });

  test('a task is given out again after its lifetime, three times at most', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    await takeFrom(queue, { lifetime: 60_000 });
    for (let start = 1; start <= 3; start++) {
      const attempt = await takeFrom(queue, { lifetime: 50 });
      expect(attempt).toMatchObject({ start, task: { name: 'exp1_1' } });
      await pause(100);
    }
    expect(await queue.take(worker)).toBeNull();
    expect(await rowOf(queue, 'exp1_1')).toMatchObject({ state: 'failed', starts: 3 });
    expect(await rowOf(queue, 'exp1_0')).toMatchObject({ state: 'active', starts: 1 });
  });

  test('a token that has expired is noticed without anybody who wants a task', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    await takeFrom(queue, { lifetime: 60_000 });
    const { token } = await takeFrom(queue, { lifetime: 50 });
    const told = new Promise((resolve) => queue.changed(5_000).then(resolve));
    await pause(100);
    await queue.endLost();
    await told;
    expect(await queue.counts()).toMatchObject({ active: 1, pending: 1 });
    const { id } = (await rowOf(queue, 'exp1_1')).task;
    expect(await queue.attempts({ taskId: id })).toMatchObject([
      { token, outcome: 'lost', error: expect.stringMatching(/sent no message in time/) },
    ]);
    expect((await takeFrom(queue)).start).toBe(2);
    await queue.endLost();
    expect(await queue.counts()).toMatchObject({ active: 2, pending: 0 });
  });

  test('a late result is rejected, whoever has the task', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const name = 'gpu "0" \\ \n [ü] 🙂';
    const late = (await queue.take({ ...worker, name }, { lifetime: 50 })) as Attempt;
    await pause(100);
    const current = await takeWithin(queue, WAIT_TIMEOUT_MS);
    expect(await queue.complete(late.token, { who: 'late' })).toBe(false);
    expect(await queue.complete(current.token, { who: 'current' })).toBe(true);
    expect(await queue.complete(late.token, { who: 'late' })).toBe(false);
    expect((await queue.completions(0, 10)).map(({ result }) => result.who)).toEqual(['current']);
    expect(await queue.attempts({ taskId: late.task.id })).toMatchObject([
      { worker: { ...worker, name }, outcome: 'lost', error: expect.stringContaining(`worker ${name}`) },
      { worker, outcome: 'completed' },
    ]);
  });

  test('a cancelled task stays cancelled', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const { token } = await takeFrom(queue, { lifetime: 60_000 });
    await queue.cancel('all');
    expect(await queue.complete(token, { a: 1 })).toBe(false);
    expect(await queue.counts()).toMatchObject({ cancelled: 1 });
    await queue.retry({ state: 'cancelled' });
    expect((await takeFrom(queue)).start).toBe(1);
  });
}
