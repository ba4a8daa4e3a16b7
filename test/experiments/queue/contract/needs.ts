import { expect, test } from 'vitest';
import type { Needs, Queue } from '../../../../lib/experiments/queue/queue.ts';
import { pause } from '../../../support/time.ts';
import { type QueueFixture, takeFrom, worker } from '../conformance.ts';
import { spec } from '../fixtures/tasks.ts';

const GIB = 2 ** 30;

/** Tests that a worker gets no task that needs more than it has. */
export function testNeeds(fixture: () => QueueFixture): void {
  const tasks = (from: number, count: number) =>
    Array.from({ length: count }, (_, index) => spec({ n: from + index }));
  const offer = (gpus: number, memory = 0): Needs => ({ gpus, memory });
  /** Takes and completes all that is given for an offer: names of tasks. */
  async function takeAll(queue: Queue, its?: Needs): Promise<string[]> {
    const names: string[] = [];
    for (;;) {
      const attempt = await queue.take(worker, its === undefined ? {} : { offer: its });
      if (attempt === null) return names;
      names.push(attempt.task.name);
      await queue.complete(attempt.token, {});
    }
  }

  test('a worker leaves tasks that need more GPUs or more memory, wherever they are in the list', async () => {
    const queue = await fixture().open();
    await queue.enqueue(tasks(0, 1_500), { needs: { gpus: 2 } });
    await queue.enqueue(tasks(1_500, 2));
    await queue.enqueue(tasks(1_502, 1), { needs: { memory: 20 * GIB } });
    await queue.enqueue(tasks(1_503, 1), { needs: { gpus: 4, memory: 10 * GIB } });
    expect(await queue.needs()).toEqual([offer(4, 10 * GIB), offer(2), offer(1, 20 * GIB), offer(1)]);
    expect((await queue.counts()).pending).toBe(1_504);
    expect((await queue.counts(offer(1))).pending).toBe(2);
    expect((await queue.counts(offer(1, 24 * GIB))).pending).toBe(3);
    expect((await queue.counts(offer(2))).pending).toBe(1_502);
    expect((await queue.counts(offer(4, 10 * GIB))).pending).toBe(1_503);

    expect(await takeAll(queue, offer(1))).toEqual(['exp1_1500', 'exp1_1501']);
    expect(await takeAll(queue, offer(1, 20 * GIB))).toEqual(['exp1_1502']);
    const first = await queue.take(worker, { offer: offer(2) });
    expect(first?.task.name).toBe('exp1_0');
    expect(await queue.needs()).toEqual([offer(4, 10 * GIB), offer(2)]);
    // A request without an offer gets any task.
    expect((await takeFrom(queue)).task.name).toBe('exp1_1');
  });

  test('what is said later counts, and what is not said stays', async () => {
    const queue = await fixture().open();
    const all = tasks(0, 2);
    await queue.enqueue(all, { needs: { gpus: 2, memory: GIB } });
    await queue.enqueue(all);
    expect(await queue.needs()).toEqual([offer(2, GIB)]);
    await queue.enqueue(all.slice(0, 1), { needs: { gpus: 4 } });
    expect(await queue.needs()).toEqual([offer(4, GIB), offer(2, GIB)]);
    await queue.enqueue(all, { needs: { memory: 0 } });
    await queue.enqueue(all, { needs: { gpus: 1 } });
    expect(await queue.needs()).toEqual([offer(1)]);
    expect(await takeAll(queue, offer(1))).toEqual(['exp1_0', 'exp1_1']);
    expect(await queue.needs()).toEqual([]);
  });

  test('a retried, requeued or delayed task keeps its needs', async () => {
    const queue = await fixture().open();
    await queue.enqueue(tasks(0, 1), { needs: { gpus: 2 } });
    const large = await takeFrom(queue);
    await queue.fail(large.token, { error: 'exit code 1', retry: false });
    await queue.retry({ state: 'failed' });
    for (const delay of [0, 300]) {
      const attempt = await takeFrom(queue);
      expect(attempt.task.name).toBe('exp1_0');
      await queue.requeue(attempt.token, 'not to blame', delay);
    }
    await queue.enqueue(tasks(1, 2));
    const small = await queue.take(worker, { offer: offer(1) });
    expect(small?.task.name).toBe('exp1_1');
    await queue.requeue((small as NonNullable<typeof small>).token, 'not to blame', 300);
    const last = await queue.take(worker, { offer: offer(1) });
    expect(last?.task.name).toBe('exp1_2');
    // Both others wait for their time; only one of them is for this worker.
    expect((await queue.counts(offer(1))).pending).toBe(1);
    const time = await queue.nextTime(offer(1));
    expect(time).not.toBeNull();
    await pause(Math.max(0, (time as number) - Date.now()) + 20);
    expect((await queue.take(worker, { offer: offer(1) }))?.task.name).toBe('exp1_1');
    expect(await queue.take(worker, { offer: offer(1) })).toBeNull();
    expect((await queue.take(worker, { offer: offer(2) }))?.task.name).toBe('exp1_0');
  });
}
