import { expect, test } from 'vitest';
import { MetricsCollector } from '../../../lib/sweeps/metrics/index.ts';
import { type AttemptInfo, NO_PID } from '../../../lib/sweeps/queue/queue.ts';

const completed = (host: string): AttemptInfo => ({
  token: '1',
  taskId: '1',
  taskName: 'exp1_0',
  worker: { name: 'gpu0', host, pid: NO_PID, gpus: [] },
  since: 0,
  ended: 1_000,
  outcome: 'completed',
  submitted: false,
  error: null,
  log: null,
});

test('metrics count tasks without a result apart for workers of one name on two hosts', () => {
  const collector = new MetricsCollector();
  for (const host of ['a', 'b', 'a']) collector.attempt(completed(host), 2_000);
  const family = collector.families().find(({ name }) => name === 'gpu_owner_tasks_without_result_total');
  expect(family?.samples).toEqual([
    { labels: { worker: 'gpu0', host: 'a' }, value: 2 },
    { labels: { worker: 'gpu0', host: 'b' }, value: 1 },
  ]);
});
