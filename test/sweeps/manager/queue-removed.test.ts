// A queue that is removed while a manager has it, at any moment.
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { exitCode } from '../../../lib/cli/exp/summary.ts';
import { GPUOwnerError } from '../../../lib/errors.ts';
import { SweepRun } from '../../../lib/sweeps/control/sweep-run.ts';
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
  const end = manager.run(over.signal, 600_000).then(
    () => null,
    (error) => error,
  );
  await until(() => rows().length === 1);
  rmSync(join(project, 'queue.db'));
  const error = await end;
  expect(error).toMatchObject({
    code: 'ERR_QUEUE',
    message: expect.stringMatching(/was removed.*Start again/),
  });
  expect(told.join('\n')).toMatch(/was removed or replaced while it was in use/);
  await manager.close();
  expect(existsSync(join(project, 'queue.db'))).toBe(false);
});

test.skipIf(noRedis !== null).each([
  ['is known to be gone meanwhile', true],
  ['is another one when it is looked at again', false],
])(
  `a queue that is removed, begun anew, and %s${noRedis === null ? '' : `: ${noRedis}`}`,
  async (_, looks) => {
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
      if (looks) await expect(queue.counts()).rejects.toThrow(/was removed/);
      if (looks) await manager.finish(signal).catch(() => {});
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

describe('`exp run`, whose queue can’t be used any longer when every task has ended', () => {
  /** @param calls how many the queue answers before it is away */
  async function ended(calls: number): Promise<{ code: number; calls: number; whole: boolean }> {
    rmSync(join(project, 'results'), { recursive: true, force: true });
    const queue = await open();
    let count = 0;
    const mortal = new Proxy(queue, {
      get: (target, key) => {
        const value = Reflect.get(target, key, target);
        if (typeof value !== 'function' || key === 'close') return value;
        return (...args: unknown[]) => {
          const away = ++count > calls;
          const error = new GPUOwnerError('ERR_QUEUE', 'the queue doesn’t answer');
          if (!away) return value.apply(target, args);
          if (key !== 'tasks') return Promise.reject(error);
          throw error;
        };
      },
    });
    const drain = new AbortController();
    const controller = new SweepRun({
      queue: mortal,
      project: { directory: project, state: project },
      own: {
        request: {
          settings: null as never,
          ...{ gpus: '1', byDefault: null, needs: {}, grace: null, watched: false },
        },
        hosts: null,
      },
      needs: {},
      reporter: {
        line: (text) => {
          told.push(text);
          // That would last until it answers.
          if (/waiting until the tables can be written/.test(text)) drain.abort();
        },
        show: () => {},
        conclude: async () => {},
      },
      signals: { drain: drain.signal, stop: drain.signal, exitCode: 130 } as never,
    });
    try {
      return { code: exitCode(await controller.run(null)), calls: count, whole: rows().length === 3 };
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
      return { code: 69, calls: count, whole: rows().length === 3 };
    } finally {
      await queue.close();
    }
  }

  test('ends well if all was in the tables, and not otherwise', async () => {
    await complete(await open(), 1, 2, 3);
    const { calls, ...well } = await ended(Number.POSITIVE_INFINITY);
    expect(well).toEqual({ code: 0, whole: true });
    const codes: number[] = [];
    for (let at = 0; at <= calls; at++) {
      const { code, whole } = await ended(at);
      if (code === 0) expect(whole).toBe(true);
      codes.push(code);
    }
    // Once it was known that all had ended and was written: what comes then are five questions.
    expect(codes.slice(codes.indexOf(0))).toEqual(codes.slice(codes.indexOf(0)).map(() => 0));
    expect(codes.filter((code) => code === 0).length).toBeGreaterThan(5);
    expect(codes.slice(0, 10)).not.toContain(0);
    expect(told).toContainEqual(expect.stringMatching(/every task has ended.*doesn’t answer/));
  });
});
