import { expect, test } from 'vitest';
import { withoutPassword } from '../../../../lib/sweeps/queue/index.ts';
import type { Engine, QueueFixture } from '../conformance.ts';

const PASSWORD = 'tR0ub4dor';

/** Tests the URL of a queue, which is printed, logged and handed to commands. */
export function testURL(fixture: () => QueueFixture, { withPassword }: Engine): void {
  test('the URL leads to the queue, and never has a password', async () => {
    const { url } = fixture();
    const queue = await fixture().open(withPassword?.(url, PASSWORD) ?? url);
    expect(queue.url).not.toContain(PASSWORD);
    expect(withoutPassword(queue.url)).toBe(queue.url);
    expect((await fixture().open(queue.url)).url).toBe(queue.url);
  });
}
