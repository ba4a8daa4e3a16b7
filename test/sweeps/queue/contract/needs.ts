import { expect, test } from 'vitest';
import type { QueueFixture } from '../conformance.ts';
import { spec } from '../fixtures/tasks.ts';

/** Tests that a task list keeps what each of its tasks needs. */
export function testNeeds(fixture: () => QueueFixture): void {
  test('what is said later counts for the whole list, and what is not said stays', async () => {
    const queue = await fixture().open();
    expect(await queue.needs()).toEqual({ gpus: 1, memory: 0 });
    await queue.setNeeds({ gpus: 2, memory: 2 ** 30 });
    await queue.enqueue([spec({ n: 0 }), spec({ n: 1 })]);
    await queue.setNeeds({ gpus: 4 });
    expect(await queue.needs()).toEqual({ gpus: 4, memory: 2 ** 30 });
    await queue.setNeeds({ memory: 0 });
    expect(await (await fixture().open()).needs()).toEqual({ gpus: 4, memory: 0 });
  });
}
