// A queue that is removed while a manager has it, at any moment.
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Manager } from '../../../lib/sweeps/manager/manager.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { until } from '../../support/machine.ts';
import { noRedis, RedisServer } from '../../support/redis-server.ts';
import { takeFrom } from '../queue/conformance.ts';
import { spec } from '../queue/fixtures/tasks.ts';

let project: string;
let told: string[];
const queues: Queue[] = [];

beforeEach(() => {
  project = mkdtempSync(join(tmpdir(), 'gpu-owner-removed-'));
  told = [];
});

afterEach(async () => {
  for (const queue of queues.splice(0)) await queue.close();
  rmSync(project, { recursive: true, force: true });
});

async function open(url = `sqlite:${join(project, 'queue.db')}`): Promise<Queue> {
  const queue = await openQueue(url, project);
  queues.push(queue);
  return queue;
}

/** Tasks that are completed at once. */
async function complete(queue: Queue, ...numbers: number[]): Promise<void> {
  await queue.enqueue(numbers.map((n) => ({ ...spec({ n }), outputDirectory: 'results' })));
  for (const n of numbers) await queue.complete((await takeFrom(queue)).token, { twice: 2 * n });
}

function rows(): string[] {
  const path = join(project, 'results/final_results.csv');
  return existsSync(path) ? readFileSync(path, 'utf8').trim().split('\n').slice(1) : [];
}

function managerOf(queue: Queue): Manager {
  const tell = (text: string) => void told.push(text);
  return new Manager({
    queue,
    project: { directory: project, state: project },
    host: 'here',
    pid: process.pid,
    tell,
    onProgress: () => {},
  });
}

test('a manager whose queue was removed says so, and ends with that error at once', async () => {
  const queue = await open();
  await complete(queue, 1);
  const manager = managerOf(queue);
  await manager.begin();
  const over = new AbortController();
  const end = manager.run(over.signal);
  await until(() => rows().length === 1);
  rmSync(join(project, 'queue.db'));
  await end;
  await expect(manager.finish(over.signal)).rejects.toMatchObject({
    code: 'ERR_QUEUE',
    message: expect.stringMatching(/was removed.*Start again/),
  });
  expect(told.join('\n')).toMatch(/was removed or replaced while it was in use/);
  await manager.close();
  expect(existsSync(join(project, 'queue.db'))).toBe(false);
});

test.skipIf(noRedis !== null)(
  `a queue that is another one when it is looked at again${noRedis === null ? '' : `: ${noRedis}`}`,
  async () => {
    const server = await RedisServer.start();
    try {
      const url = server.url('project=test&patience=2&margin=1');
      const queue = await open(url);
      await complete(queue, 1, 2, 3);
      const manager = managerOf(queue);
      const { signal } = new AbortController();
      await manager.begin();
      expect(await manager.finish(signal)).toBe(true);
      expect(rows()).toHaveLength(3);
      server.command('FLUSHALL');
      await complete(await open(url), 4, 5);
      // As long as a sign of life takes.
      await queue.changed(1_000, AbortSignal.timeout(1_000), queue.changeCount);
      await until(() => manager.finish(signal).then((done) => done && rows().length === 5));
      await manager.close();
    } finally {
      await server.remove();
    }
  },
);
