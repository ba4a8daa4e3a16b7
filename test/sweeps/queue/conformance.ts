import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Attempt, Queue, TaskRow, WorkerInfo } from '../../../lib/sweeps/queue/queue.ts';
import type { TaskSpec } from '../../../lib/sweeps/task/index.ts';
import { sendSignal } from '../../support/processes.ts';
import { testAttempts } from './contract/attempts.ts';
import { testBulk } from './contract/bulk.ts';
import { testEnqueue } from './contract/enqueue.ts';
import { testKilledWorkers } from './contract/killed-workers.ts';
import { testLifetimes } from './contract/lifetimes.ts';
import { testLists } from './contract/lists.ts';
import { testManyProcesses } from './contract/many-processes.ts';
import { testNeeds } from './contract/needs.ts';
import { testReruns } from './contract/reruns.ts';
import { testSearch } from './contract/search.ts';
import { testURL } from './contract/url.ts';
import { Remote } from './remote.ts';

export interface Engine {
  name: string;
  /** Where a new, empty queue is: its URL, and how it is removed. @param directory an empty one for the test */
  make(directory: string): Promise<{ url: string; remove(): Promise<void> }>;
  /** The same URL with a password; null: its URLs have none. */
  withPassword: ((url: string, password: string) => string) | null;
  /** How long it may take until the task of a killed worker is given out again, in ms. */
  recovery: number;
  /** How many tasks it adds at once. */
  batch: number;
  /** Whether it sees itself that something of an attempt lives, or is told by those who looked after it. */
  seesProcesses: boolean;
}

export const worker: WorkerInfo = { name: 'gpu0', host: 'here', pid: process.pid, gpus: ['GPU-0'] };

/** A new queue for each test, and other processes that have it. */
export class QueueFixture {
  readonly directory = mkdtempSync(join(tmpdir(), 'gpu-owner-queue-'));
  readonly engine: Engine;
  url = '';
  readonly #remotes: Remote[] = [];
  readonly #queues: Queue[] = [];
  readonly #pids: number[] = [];
  #remove: () => Promise<void> = async () => {};

  constructor(engine: Engine) {
    this.engine = engine;
  }

  async make(): Promise<void> {
    const { url, remove } = await this.engine.make(this.directory);
    this.url = url;
    this.#remove = remove;
  }

  /** In this process. */
  async open(url = this.url): Promise<Queue> {
    const queue = await openQueue(url, this.directory);
    this.#queues.push(queue);
    return queue;
  }

  /** With these tasks in it. */
  async opened(...tasks: TaskSpec[]): Promise<Queue> {
    const queue = await this.open();
    await queue.enqueue(tasks);
    return queue;
  }

  /** In another process. */
  async remote(): Promise<Remote> {
    const remote = await Remote.start(this.url, this.directory);
    this.#remotes.push(remote);
    return remote;
  }

  /** A process that is to be killed at the end of the test. */
  kills(pid: number): void {
    this.#pids.push(pid);
  }

  async close(): Promise<void> {
    for (const pid of this.#pids) sendSignal(pid, 'SIGKILL');
    await Promise.all(this.#remotes.map((remote) => remote.kill()));
    for (const queue of this.#queues) await queue.close();
    await this.#remove();
    rmSync(this.directory, { recursive: true, force: true });
  }
}

export async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const item of items) list.push(item);
  return list;
}

/** The only task with this name or id. */
export async function rowOf(queue: Queue, match: string): Promise<TaskRow> {
  const rows = await all(queue.tasks({ match }));
  if (rows.length !== 1) throw new Error(`${rows.length} tasks match ${match}`);
  return rows[0] as TaskRow;
}

/** The next task, which there must be. */
export async function takeFrom(queue: Queue, options?: { lifetime?: number }): Promise<Attempt> {
  const attempt = await queue.take(worker, options);
  if (attempt === null) throw new Error('no task was given out');
  return attempt;
}

/** Takes as a worker would: again when something has changed. */
export async function takeWithin(queue: Queue, milliseconds: number): Promise<Attempt> {
  for (const end = performance.now() + milliseconds; ; ) {
    const attempt = await queue.take(worker);
    if (attempt !== null) return attempt;
    if (performance.now() > end) throw new Error(`no task was given out within ${milliseconds} ms`);
    await queue.changed(1_000);
  }
}

const PARTS = {
  enqueue: testEnqueue,
  attempts: testAttempts,
  'killed-workers': testKilledWorkers,
  lifetimes: testLifetimes,
  bulk: testBulk,
  lists: testLists,
  needs: testNeeds,
  reruns: testReruns,
  search: testSearch,
  'many-processes': testManyProcesses,
  url: testURL,
};
type Part = keyof typeof PARTS;

/** A test for every promise of `Queue`, the same for all engines; or those of some parts. */
export function testConformance(engine: Engine, has: (part: Part) => boolean = () => true): void {
  describe(engine.name, () => {
    let fixture: QueueFixture;
    beforeEach(async () => {
      fixture = new QueueFixture(engine);
      await fixture.make();
    });
    afterEach(() => fixture.close());

    const current = () => fixture;
    for (const part of (Object.keys(PARTS) as Part[]).filter(has)) {
      describe(part, () => PARTS[part](current, engine));
    }
  });
}
