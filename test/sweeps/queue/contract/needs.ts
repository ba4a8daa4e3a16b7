import { expect, test } from 'vitest';
import type { QueueFixture } from '../conformance.ts';

/** Tests that a task list keeps how many GPUs each of its tasks needs. */
export function testNeeds(fixture: () => QueueFixture): void {
  test('the number of GPUs that is said last counts for the whole list', async () => {
    const queue = await fixture().open();
    expect(await queue.gpusPerTask()).toBe(1);
    await queue.setGPUsPerTask(2);
    await queue.setGPUsPerTask(4);
    expect(await (await fixture().open()).gpusPerTask()).toBe(4);
  });
}
