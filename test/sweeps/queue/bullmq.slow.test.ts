import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { bootMilliseconds } from '../../../lib/platform/index.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import { noRedis, RedisServer } from '../../support/redis-server.ts';
import { until } from '../../support/time.ts';
import { type Engine, takeFrom, testConformance, worker } from './conformance.ts';
import { spec } from './fixtures/tasks.ts';

/** In seconds: tests can't wait for a minute until a task is given out again. But a busy machine must not seem dead. */
const TIMES = 'patience=4&margin=1';
/** Where most of the time is spent waiting for that. */
const TIMES_OF_DEATHS = 'patience=1&margin=0.5';

describe.skipIf(noRedis !== null)(`on Redis${noRedis === null ? '' : `: ${noRedis}`}`, () => {
  let server: RedisServer;
  let made = 0;
  beforeAll(async () => {
    server = await RedisServer.start();
  });
  afterAll(() => server.remove());

  const engine = (name: string, times: string): Engine => ({
    name,
    make: async () => ({
      url: server.url(`project=test-${++made}&${times}`),
      remove: async () => {
        server.command('FLUSHALL');
      },
    }),
    // Redis asks for none here, and so accepts any.
    withPassword: (url, password) => url.replace('://', `://default:${password}@`),
    recovery: 10_000,
    batch: 500,
    seesProcesses: false,
  });
  testConformance(engine('BullMQ', TIMES), (part) => part !== 'killed-workers');
  testConformance(engine('BullMQ when workers die', TIMES_OF_DEATHS), (part) => part === 'killed-workers');

  test('the deadline of an attempt moves with each renewal', async () => {
    const queue = await openQueue(server.url('project=deadlines&patience=5&margin=0.5'), '/');
    try {
      await queue.enqueue([spec({ n: 0 })]);
      const before = bootMilliseconds();
      const { deadline, token } = await takeFrom(queue);
      const { at, grace } = deadline as NonNullable<typeof deadline>;
      expect(at).toBeGreaterThanOrEqual(before + 6_000 - 20);
      expect(at).toBeLessThanOrEqual(bootMilliseconds() + 6_000);
      expect(grace).toBe(250);
      const moved: number[] = [];
      (deadline as NonNullable<typeof deadline>).onMoved = (next) => moved.push(next);
      await until(() => moved.length >= 2);
      expect([at, ...moved].sort((a, b) => a - b)).toEqual([at, ...moved]);
      expect(deadline?.at).toBe(moved.at(-1));
      await queue.requeue(token, 'a test');
      expect((await takeFrom(queue, { lifetime: 60_000 })).deadline).toBeNull();
    } finally {
      await queue.close();
    }
  });

  test('a task that was cancelled and retried waits for its command, whatever the clocks of the machines say', async () => {
    const queue = await openQueue(server.url('project=clocks'), '/');
    const other = await openQueue(server.url('project=clocks'), '/');
    try {
      await queue.enqueue([spec({ n: 0 })]);
      const { token } = await takeFrom(other);
      await queue.cancel('all');
      vi.spyOn(Date, 'now').mockReturnValue(Date.now() + 86_400_000); // this machine is a day ahead
      expect(await queue.retry({ state: 'cancelled' })).toEqual(['exp1_0']);
      vi.spyOn(Date, 'now').mockReturnValue(Date.now() + 86_400_000); // and of one that takes it, of two days
      expect(await queue.take(worker)).toBeNull();
      expect(await other.requeue(token, 'its command has ended')).toBe(false);
      expect((await takeFrom(queue)).task.name).toBe('exp1_0');
    } finally {
      vi.restoreAllMocks();
      await other.close();
      await queue.close();
    }
  });

  test('a task costs Redis three scripts, and few commands in them', async () => {
    const queue = await openQueue(server.url('project=counted'), '/');
    try {
      await queue.enqueue(Array.from({ length: 201 }, (_, n) => spec({ n })));
      const work = async (tasks: number) => {
        for (let n = 0; n < tasks; n++)
          await queue.complete((await takeFrom(queue)).token, { accuracy: 0.5 });
      };
      await work(1); // loads the scripts
      server.command('CONFIG', 'RESETSTAT');
      await work(200);
      const calls = [...server.command('INFO', 'commandstats').matchAll(/^cmdstat_(\S+):calls=(\d+)/gm)];
      const of = (kind: (name: string) => boolean) =>
        calls.reduce((sum, [, name = '', count]) => sum + (kind(name) ? Number(count) : 0), 0) / 200;
      const mine = ['evalsha', 'config|resetstat', 'info'];
      // BullMQ's own are 25 of them. More come with looks, four per second.
      expect(of((name) => !mine.includes(name))).toBeLessThan(39);
      expect(of((name) => name === 'evalsha')).toBeLessThan(3.1);
    } finally {
      await queue.close();
    }
  });
});
