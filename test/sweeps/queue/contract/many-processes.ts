import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { pause, processorTime, quickest } from '../../../support/time.ts';
import type { Engine, QueueFixture } from '../conformance.ts';
import { plainTasks } from '../fixtures/tasks.ts';

const SOAK = Boolean(process.env.GPU_OWNER_SOAK);

/** Many processes, and many tasks. */
export function testManyProcesses(
  fixture: () => QueueFixture,
  { seesProcesses }: Pick<Engine, 'seesProcesses'>,
): void {
  const processes = SOAK ? 16 : 4;
  test(`${processes} processes never start a task twice`, { timeout: 120_000 }, async () => {
    const count = SOAK ? 10_000 : 150;
    const witness = join(fixture().directory, 'witness');
    mkdirSync(witness);
    const queue = await fixture().open();
    await queue.enqueue(plainTasks(count));
    const remotes = await Promise.all(Array.from({ length: processes }, () => fixture().remote()));
    const done = await Promise.all(remotes.map((remote) => remote.ask<number>('consume', witness)));
    expect(existsSync(join(witness, 'double'))).toBe(false);
    const started = readFileSync(join(witness, 'started'), 'utf8').trimEnd().split('\n');
    expect(started).toHaveLength(count);
    expect(new Set(started).size).toBe(count);
    expect(done.reduce((sum, each) => sum + each, 0)).toBe(count);
    expect(done.filter((each) => each === 0)).toEqual([]);
    expect(await queue.counts()).toMatchObject({ completed: count });
  });

  // Elsewhere, most of the time is spent waiting for locks to end.
  test.skipIf(!seesProcesses && !SOAK)(
    'workers that are killed all the time lose nothing',
    { timeout: 120_000 },
    async () => {
      const witness = join(fixture().directory, 'witness');
      mkdirSync(witness);
      const queue = await fixture().open();
      const count = SOAK ? 5_000 : 150;
      await queue.enqueue(plainTasks(count));
      for (let times = 0; times < (SOAK ? 50 : 2); times++) {
        const remotes = await Promise.all([fixture().remote(), fixture().remote(), fixture().remote()]);
        for (const remote of remotes) void remote.ask('consume', witness).catch(() => {});
        await pause(100 + Math.random() * 100);
        await Promise.all(remotes.map((remote) => remote.kill()));
      }
      const last = await fixture().remote();
      await last.ask('consume', witness);
      expect(existsSync(join(witness, 'double'))).toBe(false);
      expect(await queue.counts()).toMatchObject({ pending: 0, active: 0, completed: count });
      expect(await queue.completions(0, count + 1)).toHaveLength(count);
    },
  );

  test.skipIf(!SOAK)(
    '100000 tasks are enqueued and counted in reasonable time',
    { timeout: 300_000 },
    async () => {
      const queue = await fixture().open();
      const time = await processorTime(async () => {
        expect(await queue.enqueue(plainTasks(100_000))).toMatchObject({ added: 100_000 });
      });
      expect(time).toBeLessThan(30_000);
      const look = async () => expect(await queue.counts()).toMatchObject({ pending: 100_000 });
      expect(await quickest(100, look)).toBeLessThan(100);
    },
  );
}
