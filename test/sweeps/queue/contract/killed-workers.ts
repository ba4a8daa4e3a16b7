import { expect, test } from 'vitest';
import { pause } from '../../../support/machine.ts';
import { sendSignal, signalLiving } from '../../../support/processes.ts';
import { type Engine, type QueueFixture, rowOf, takeFrom, takeWithin, worker } from '../conformance.ts';
import { spec } from '../fixtures/tasks.ts';
import type { RemoteAttempt } from '../remote.ts';

/** Processes that end without a word, or stop. */
export function testKilledWorkers(
  fixture: () => QueueFixture,
  { seesProcesses }: Pick<Engine, 'seesProcesses'>,
): void {
  test('the task of a killed worker is given out again, and its token is worth nothing', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const remote = await fixture().remote();
    const { token } = (await remote.take()) as RemoteAttempt;
    await queue.endLost();
    expect(await queue.counts()).toMatchObject({ active: 1 });
    await remote.kill();
    // It is noticed without anybody who wants a task.
    for (const end = Date.now() + fixture().engine.recovery; ; await pause(50)) {
      await queue.endLost();
      if ((await queue.counts()).pending === 1) break;
      expect(Date.now()).toBeLessThan(end);
    }
    const again = await takeFrom(queue);
    expect(again.start).toBe(2);
    const [lost] = await queue.attempts({ taskId: again.task.id });
    expect(lost).toMatchObject({ token, outcome: 'lost' });
    expect(lost?.error).toMatch(/gpu0/);
    expect(await queue.complete(token, { stale: true })).toBe(false);
    expect(await queue.complete(again.token, { fresh: true })).toBe(true);
    expect((await queue.completions(0, 10)).map(({ result }) => result)).toEqual([{ fresh: true }]);
  });

  test('a task is not given out again while anything of its attempt lives', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const remote = await fixture().remote();
    const { token } = (await remote.take()) as RemoteAttempt;
    const child = await remote.ask<number>('startChild', token);
    fixture().kills(child);
    await remote.kill();
    await pause(300);
    expect(await queue.take(worker)).toBeNull();
    expect(await queue.counts()).toMatchObject({ active: 1 });
    expect(await queue.attempts('living')).toHaveLength(1);
    signalLiving(child, 'SIGTERM'); // which it ignores
    await pause(100);
    expect(await queue.take(worker)).toBeNull();
    sendSignal(child, 'SIGKILL');
    expect((await takeWithin(queue, fixture().engine.recovery)).start).toBe(2);
  });

  // Elsewhere, the worker that reports the end has seen to that.
  test.skipIf(!seesProcesses)(
    'a task is not given out again when its attempt has ended and its command hasn’t',
    async () => {
      const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
      const remote = await fixture().remote();
      const { token } = (await remote.take()) as RemoteAttempt;
      const child = await remote.ask<number>('startChild', token);
      fixture().kills(child);
      expect(await remote.ask('fail', token, { error: 'exit code 1', retry: true })).toBe('pending');
      const next = await takeFrom(queue);
      expect(next.task.parameters.n).toBe(1);
      await queue.complete(next.token, {});
      expect(await queue.take(worker)).toBeNull();
      sendSignal(child, 'SIGKILL');
      const again = await takeWithin(queue, fixture().engine.recovery);
      expect([again.task.parameters.n, again.start]).toEqual([0, 2]);
    },
  );

  test('a worker that is stopped and goes on leaves one result', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const remote = await fixture().remote();
    const { token } = (await remote.take()) as RemoteAttempt;
    remote.signal('SIGSTOP');
    await pause(1_000);
    // Whether its task is given out meanwhile is the engine's affair.
    const other = await queue.take(worker);
    const taken = other === null ? null : await queue.complete(other.token, { who: 'other' });
    remote.signal('SIGCONT');
    expect(await remote.ask('complete', token, { who: 'stopped' })).toBe(taken === null);
    const results = (await queue.completions(0, 10)).map(({ result }) => result.who);
    expect(results).toEqual([taken === null ? 'stopped' : 'other']);
  });

  test('a task with one retry that kills its worker is started twice', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), { ...spec({ n: 1 }), retries: 1 });
    await queue.complete((await takeFrom(queue)).token, {});
    for (let start = 1; start <= 2; start++) {
      const remote = await fixture().remote();
      let attempt: RemoteAttempt | null = null;
      for (const end = Date.now() + fixture().engine.recovery; attempt === null && Date.now() < end; ) {
        attempt = await remote.take();
        if (attempt === null) await pause(50);
      }
      expect(attempt?.start).toBe(start);
      await remote.kill();
    }
    const end = Date.now() + fixture().engine.recovery;
    while ((await queue.counts()).failed === 0 && Date.now() < end) {
      expect(await queue.take(worker)).toBeNull();
      await queue.changed(1_000);
    }
    expect(await rowOf(queue, 'exp1_1')).toMatchObject({ state: 'failed', starts: 2 });
  });

  test('one process manages, until it goes', async () => {
    const queue = await fixture().open();
    const [first, second] = [await fixture().remote(), await fixture().remote()];
    expect(await queue.manager()).toBeNull();
    expect(await first.ask('manage')).toBe(true);
    expect(await second.ask('manage')).toBe(false);
    expect(await queue.manager()).toMatchObject({ host: 'here', pid: first.pid });
    await first.kill();
    for (const end = Date.now() + fixture().engine.recovery; ; await pause(50)) {
      if ((await queue.manager()) === null) break;
      expect(Date.now()).toBeLessThan(end);
    }
    expect(await second.ask('manage')).toBe(true);
    expect(await queue.manage({ host: 'here', pid: 1 })).toBeNull();
    await second.ask('release');
    expect(await queue.manager()).toBeNull();
    expect(await queue.manage({ host: 'here', pid: 1 })).not.toBeNull();
    expect(await queue.manage({ host: 'here', pid: 2 })).toBeNull();
  });
}
