// The view of dashboards of BullMQ on a queue: read by BullMQ's own public API, as they do.

import { createRequire } from 'node:module';
import type * as BullMQ from 'bullmq';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { Literal } from '../../../lib/sweeps/task/index.ts';
import { noRedis, queueName, RedisServer } from '../../support/redis-server.ts';
import { takeFrom } from './conformance.ts';
import { spec } from './fixtures/tasks.ts';

describe.skipIf(noRedis !== null)(`dashboards${noRedis === null ? '' : `: ${noRedis}`}`, () => {
  let server: RedisServer;
  let queue: Queue;
  let seen: BullMQ.Queue;
  beforeAll(async () => {
    server = await RedisServer.start();
    queue = await openQueue(server.url('project=lab'), '/');
    const { Queue } = createRequire(import.meta.url)('bullmq') as typeof BullMQ;
    seen = new Queue(queueName('lab'), {
      connection: { host: '127.0.0.1', port: server.port },
      prefix: 'gpu-owner',
    });
  });
  afterAll(async () => {
    await seen.close();
    await queue.close();
    await server.remove();
  });

  const odd = {
    n: 'waiting',
    text: 'NaN, "Infinity" and \\"-Infinity\\',
    lr: new Literal(1, '1.0'),
    nan: Number.NaN,
    both: [Number.NEGATIVE_INFINITY, { inf: Number.POSITIVE_INFINITY }],
    NaN: 1,
  };

  test('show tasks of all states, with names, parameters, results, errors and logs', async () => {
    const states = ['completed', 'failed', 'delayed', 'cancelled', 'again', 'active'];
    await queue.enqueue([...states.map((n) => spec({ n, seed: 7 })), spec(odd)]);
    const tokens: string[] = [];
    for (let n = 0; n < states.length; n++) tokens.push((await takeFrom(queue)).token);
    const [completed = '', failed = '', delayed = '', cancelled = '', again = ''] = tokens;
    await queue.complete(completed, { accuracy: 0.5, loss: Number.NaN });
    await queue.fail(failed, { error: 'exit code 1: out of memory\nThe log ends with:\n  x', retry: false });
    await queue.requeue(delayed, 'busy', 60_000);
    await queue.cancel({ ids: ['exp1_3_7'] });
    await queue.requeue(cancelled, 'it has ended');
    await queue.fail(again, { error: 'exit code 1', retry: true });

    expect(await seen.getJobCounts()).toEqual({
      active: 1,
      completed: 1,
      delayed: 1,
      failed: 2, // one was cancelled
      prioritized: 2,
      waiting: 0,
      'waiting-children': 0,
    });
    const named = async (state: BullMQ.JobType) =>
      (await seen.getJobs([state])).map(({ name }) => name).sort();
    expect(await named('active')).toEqual(['exp1_5_7']);
    expect(await named('delayed')).toEqual(['exp1_2_7']);
    expect(await named('failed')).toEqual(['exp1_1_7', 'exp1_3_7']);
    expect(await named('prioritized')).toEqual(['exp1_4_7', 'exp1_6']);

    const job = async (name: string) => {
      const jobs = await seen.getJobs(['active', 'completed', 'failed', 'prioritized']);
      return jobs.find((each) => each.name === name) as BullMQ.Job;
    };
    const done = await job('exp1_0_7');
    expect(done).toMatchObject({
      data: { parameters: '{"n":"completed","seed":7}' },
      returnvalue: '{"accuracy":0.5,"loss":NaN}',
      processedBy: expect.stringMatching(/^{"name":"gpu0","host":"here",/),
    });
    const wrong = await job('exp1_1_7');
    expect(wrong.failedReason).toMatch(/^exit code 1: out of memory/);
    expect(wrong.stacktrace).toEqual(['exit code 1: out of memory\nThe log ends with:\n  x']);
    // JSON has no such numbers.
    expect((await takeFrom(queue)).task.parameters).toMatchObject({ text: odd.text, nan: Number.NaN });
  });

  test('show metrics', async () => {
    const metrics = await seen.exportPrometheusMetrics();
    expect(metrics).toMatch(/^bullmq_job_count\{queue="lab@[^"]+", state="completed"\} 1$/m);
    expect(metrics).toMatch(/^bullmq_job_count\{queue="lab@[^"]+", state="failed"\} 2$/m);
  });
});
