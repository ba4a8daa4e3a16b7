// The manager's log of attempts that it hears of twice: from the server that gave them out, and from the queue.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { AttemptEvents } from '../../../lib/sweeps/manager/log.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { AttemptInfo, Queue } from '../../../lib/sweeps/queue/queue.ts';
import { spec } from '../queue/fixtures/tasks.ts';

let project: string;
let queue: Queue;
let events: AttemptEvents;
let lines: string[];

beforeEach(async () => {
  project = mkdtempSync(join(tmpdir(), 'gpu-owner-log-'));
  queue = await openQueue(`sqlite:${join(project, 'queue.db')}`, project);
  await queue.enqueue([spec({ n: 0 })]);
  lines = [];
  events = new AttemptEvents({ queue, host: 'here', pid: process.pid }, (text) => lines.push(text));
  await events.begin();
});

afterEach(async () => {
  await queue.close();
  rmSync(project, { recursive: true, force: true });
});

/** An attempt of a worker that asks over TCP. */
async function take(): Promise<AttemptInfo> {
  await queue.take({ name: 'gpu0', host: 'here', pid: 0, gpus: [] }, { lifetime: 60_000 });
  const [attempt] = await queue.attempts('living');
  if (attempt === undefined) throw new Error('no task was given out');
  return attempt;
}

test('an attempt is logged once, whether the queue or who gave it out tells first', async () => {
  const attempt = await take();
  await events.update();
  events.add(attempt);
  expect(lines).toEqual(['Assigned task exp1_0 to gpu0']);
  await queue.requeue(attempt.token, 'once more');
  events.add({ ...attempt, outcome: 'given-back', error: 'once more' });
  const again = await take();
  events.add(again);
  await events.update();
  await queue.complete(again.token, { loss: 1 });
  events.add({ ...again, outcome: 'completed', submitted: true });
  await events.update();
  expect(lines.slice(1)).toEqual([
    'Task exp1_0 requeued by gpu0: once more',
    'Assigned task exp1_0 to gpu0',
    'Task exp1_0 completed by gpu0',
  ]);
});
