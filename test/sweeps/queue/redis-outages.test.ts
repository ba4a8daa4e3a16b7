// Redis is killed, stopped, or can't be reached: who waits goes on, and who has a task keeps it for a while.
import { describe, expect, type TestContext, test } from 'vitest';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { pause } from '../../support/machine.ts';
import { noRedis, RedisServer } from '../../support/redis-server.ts';
import { soakTest } from '../../support/time.ts';
import { QueueFixture, rowOf, takeFrom, takeWithin, worker } from './conformance.ts';
import { spec } from './fixtures/tasks.ts';
import { Network } from './network.ts';

// A fifteenth of what people have: 60 s become 4 s.
const TIMES = 'patience=4&margin=1';

// They wait for most of the time, each with a Redis of its own.
describe
  .skipIf(noRedis !== null)
  .concurrent(`outages of Redis${noRedis === null ? '' : `: ${noRedis}`}`, () => {
    async function start({
      onTestFinished,
    }: TestContext): Promise<{ server: RedisServer; fixture: QueueFixture }> {
      const server = await RedisServer.start();
      const fixture = new QueueFixture({
        name: 'BullMQ',
        make: async () => ({ url: server.url(`project=test&${TIMES}`), remove: async () => {} }),
        withPassword: null,
        recovery: 10_000,
        batch: 500,
        seesProcesses: false,
      });
      onTestFinished(async () => {
        await fixture.close();
        await server.remove();
      });
      await fixture.make();
      return { server, fixture };
    }

    /** As a worker: again, until it works. */
    async function insist<T>(act: () => Promise<T>): Promise<T> {
      for (const end = Date.now() + 15_000; ; await pause(50)) {
        try {
          return await act();
        } catch (error) {
          if (Date.now() > end) throw error;
        }
      }
    }

    test('Redis has everything that was acknowledged after it was killed and started again', async (context) => {
      const { server, fixture } = await start(context);
      const queue = await fixture.opened(spec({ n: 0 }), spec({ n: 1 }), spec({ n: 2 }));
      const [done, running] = [await takeFrom(queue), await takeFrom(queue)];
      await queue.complete(done.token, { accuracy: 0.5 });
      const change = queue.changed(20_000); // idle
      await server.kill();
      await pause(300);
      expect(running.signal.aborted).toBe(false);
      await server.start();
      expect(await insist(() => queue.complete(running.token, { accuracy: 0.25 }))).toBe(true);
      await change;
      expect((await queue.completions(0, 10)).map(({ result }) => result)).toEqual([
        { accuracy: 0.5 },
        { accuracy: 0.25 },
      ]);
      expect((await takeFrom(queue)).task.parameters.n).toBe(2);
      expect((await takeFrom(await openAgain(fixture, queue))).start).toBe(1);
    });

    /** After the last task was taken: it is given back, so that there is one. */
    async function openAgain(fixture: QueueFixture, queue: Queue): Promise<Queue> {
      const [living] = await queue.attempts('living');
      await queue.requeue(living?.token as string, 'for the next');
      return fixture.open();
    }

    test('a Redis that comes back with nothing has no finished experiment, but a lost one', async (context) => {
      const { server, fixture } = await start(context);
      const queue = await fixture.opened(spec({ n: 0 }), spec({ n: 1 }));
      const attempt = await takeFrom(queue);
      server.command('FLUSHALL');
      const refused = async (act: Promise<unknown>) =>
        expect(await act.catch((error) => error)).toMatchObject({
          code: 'ERR_QUEUE',
          message: expect.stringMatching(/was removed while it was in use.*Start again/),
        });
      await refused(queue.counts());
      await refused(queue.take(worker));
      await refused(queue.pause('person', 'lunch'));
      await refused(queue.enqueue([spec({ n: 2 })]));
      expect(await queue.complete(attempt.token, {})).toBe(false);
      expect(server.command('--scan', '--pattern', 'gpu-owner-tasks:*settings')).toBe('');
      // A new process begins anew, and those that are still there see that.
      const fresh = await fixture.opened(spec({ n: 3 }));
      expect(await fresh.counts()).toMatchObject({ pending: 1 });
      expect((await takeFrom(queue)).task.parameters.n).toBe(3);
    });

    test('a worker keeps its task in a short outage, whatever the outage is', async (context) => {
      const { server, fixture } = await start(context);
      const queue = await fixture.opened(spec({ n: 0 }));
      const attempt = await takeFrom(queue);
      await server.kill();
      await pause(1_000);
      await server.start();
      // An outage of its own: the worker is connected, and its lock is renewed.
      await insist(() => queue.counts());
      await queue.changed(0);
      server.signal('SIGSTOP');
      await pause(1_500);
      server.signal('SIGCONT');
      await pause(3_000);
      expect(attempt.signal.aborted).toBe(false);
      expect(await insist(() => queue.take(worker))).toBeNull();
      expect(await insist(() => queue.complete(attempt.token, {}))).toBe(true);
      expect(await rowOf(queue, 'exp1_0')).toMatchObject({ state: 'completed', starts: 1 });
    });

    soakTest(
      'a worker that is cut off for too long gives its task up before others can have it',
      async (context) => {
        const { server, fixture } = await start(context);
        const network = await Network.start(server.port);
        const cutOff = new QueueFixture({ ...fixture.engine, make: async () => ({ url: fixture.url.replace(`:${server.port}`, `:${network.port}`), remove: async () => {} }) }); // biome-ignore format: one thing
        await cutOff.make();
        try {
          const queue = await fixture.opened(spec({ n: 0 }));
          const far = await cutOff.open();
          const attempt = await takeFrom(far);
          network.cut();
          const started = performance.now();
          let aborted = Number.POSITIVE_INFINITY;
          attempt.signal.addEventListener('abort', () => {
            aborted = performance.now() - started;
          });
          const again = await takeWithin(queue, 15_000);
          const taken = performance.now() - started;
          expect(aborted).toBeGreaterThan(3_900); // as much of an outage as was promised
          expect(taken).toBeGreaterThan(aborted + 500); // time for its command to end
          expect(taken).toBeLessThan(9_000);
          expect((attempt.signal.reason as Error).message).toMatch(/could not be reached/);
          expect(again.start).toBe(2);
          network.mend();
          expect(await insist(() => far.complete(attempt.token, { stale: true }))).toBe(false);
          expect(await rowOf(queue, 'exp1_0')).toMatchObject({ state: 'active', starts: 2 });
          expect(await queue.complete(again.token, { fresh: true })).toBe(true);
          expect((await far.completions(0, 10)).map(({ result }) => result)).toEqual([{ fresh: true }]);
        } finally {
          await cutOff.close();
          network.close();
        }
      },
    );

    test('an operation says so in time when nobody answers', async (context) => {
      const { server, fixture } = await start(context);
      const queue = await fixture.opened(spec({ n: 0 }));
      await server.kill();
      const started = performance.now();
      await expect(queue.counts()).rejects.toMatchObject({
        code: 'ERR_QUEUE',
        message: expect.stringMatching(/can't be reached/),
      });
      expect(performance.now() - started).toBeLessThan(20_000);
    });
  });
