import { createRequire } from 'node:module';
import type * as BullMQ from 'bullmq';
import type * as IORedis from 'ioredis';
import { errorMessage, GPUOwnerError } from '../../../errors.ts';
import { now, sleep } from '../../../platform/index.ts';
import { unusable } from '../queue.ts';
import type { Address } from './address.ts';
import { explain, isPassing } from './errors.ts';
import { checkServer } from './server.ts';

const CONNECT_TIMEOUT_MS = 5_000;
const ANSWER_TIMEOUT_MS = 5_000;
/** How long an operation is retried while the server can't be reached. */
const RETRY_TIMEOUT_MS = 5_000;
/** Events that BullMQ keeps: results are in them, too. */
export const EVENTS = 1_000;

/** What BullMQ reads of a job that it is given. Its types ask for whole jobs. */
interface JobReference {
  id: string;
  opts?: BullMQ.JobJson['opts'] | { attempts: number };
}

type Narrowed = 'addJobs' | 'updateData' | 'retryFinishedJob' | 'moveToCompleted' | 'moveToFailed';

/** BullMQ's operations. Those that take a job ask for no more than they read. */
export interface JobOperations extends Omit<BullMQ.RedisQueueBackend, Narrowed> {
  addJobs(
    entries: {
      jobId: string;
      job: { id: string; name: string; timestamp: number; opts: { priority: number }; data: string };
    }[],
  ): Promise<string[]>;
  updateData(job: JobReference, data: Record<string, unknown>): Promise<void>;
  retryFinishedJob(job: JobReference, state: 'completed' | 'failed'): Promise<void>;
  /** @param keep undefined: ended jobs stay */
  moveToCompleted(
    job: JobReference,
    result: unknown,
    keep: undefined,
    token: string,
    fetchNext: false,
  ): Promise<unknown>;
  moveToFailed(
    job: JobReference,
    reason: string,
    keep: undefined,
    token: string,
    fetchNext: false,
    fields: Record<string, string>,
  ): Promise<unknown>;
}

/** @throws ERR_QUEUE where the packages of the Redis engine aren't installed: those who only claim GPUs don't need them */
function loadPackages(): Pick<typeof IORedis, 'Redis'> & Pick<typeof BullMQ, 'createRedisBackend'> {
  const require = createRequire(import.meta.filename);
  try {
    const { Redis } = require('ioredis') as typeof IORedis;
    const { createRedisBackend } = require('bullmq') as typeof BullMQ;
    return { Redis, createRedisBackend };
  } catch (cause) {
    throw new GPUOwnerError(
      'ERR_QUEUE',
      'queues on Redis need two packages that are not installed beside gpu-owner: ' +
        'npm install bullmq@6 ioredis@6',
      { cause },
    );
  }
}

/** The one connection of a queue, and its operations, which are tried again for a while when it breaks. */
export class RedisConnection {
  readonly address: Address;
  /** How long a lock lasts, and how often it is renewed, in ms. */
  readonly lock: number;
  readonly renewal: number;
  readonly client: IORedis.Redis;
  /** BullMQ's operations, which are tried again while the server can't be reached. */
  readonly jobs: JobOperations;
  /** Commands, in the same way. */
  readonly redis: IORedis.Redis;
  /** BullMQ's operations, each tried once, and the names of its keys. */
  backend!: JobOperations;
  readonly #createBackend: () => JobOperations;
  #lastError: unknown = null;
  #closed = false;

  private constructor(address: Address, { Redis, createRedisBackend }: ReturnType<typeof loadPackages>) {
    this.address = address;
    this.renewal = Math.min(2_000, address.patience / 5);
    this.lock = Math.ceil(address.patience + this.renewal + address.margin);
    const options: IORedis.RedisOptions = {
      ...address.connection,
      lazyConnect: true,
      // Waits happen here, for a limited time.
      enableOfflineQueue: false,
      autoResendUnfulfilledCommands: false,
      // Commands that were sent when a connection broke are answered with an error at once.
      maxRetriesPerRequest: 0,
      connectTimeout: CONNECT_TIMEOUT_MS,
      commandTimeout: ANSWER_TIMEOUT_MS,
      retryStrategy: (times) => Math.min(50 * 2 ** Math.min(times, 10), 1_000),
      connectionName: 'gpu-owner',
    };
    const client = new Redis(options as never); // ioredis’s overloads don’t fit exact optional properties
    client.on('error', (error) => {
      this.#lastError = error;
    });
    client.on('ready', () => {
      this.#lastError = null;
    });
    this.client = client;
    this.#createBackend = () =>
      createRedisBackend(address.name, {
        connection: client,
        prefix: 'gpu-owner',
        skipVersionCheck: true,
        lockDuration: this.lock,
        // Whether a job's lock is gone is looked at with each question.
        stalledInterval: 1,
        maxStalledCount: Number.MAX_SAFE_INTEGER,
      } as never) as unknown as JobOperations; // its type lacks the options of a worker
    this.jobs = this.#repeated(() => this.backend);
    this.redis = this.#repeated(() => client);
  }

  /** @throws ERR_QUEUE if the server isn't reached within 5 s */
  static async open(address: Address): Promise<RedisConnection> {
    // Not imported: only those who have such a queue need it.
    const connection = new RedisConnection(address, loadPackages());
    const { client } = connection;
    try {
      void client.connect().catch((error) => {
        connection.#lastError ??= error;
      });
      await connection.#ready(now() + CONNECT_TIMEOUT_MS, { strict: true });
      const { db } = address.connection;
      // The client is ready without having waited for that, and would go on in database 0.
      if (db) await client.select(db);
      await checkServer(connection.redis, address.url);
      connection.backend = connection.#createBackend();
      connection.backend.on('error', () => {}); // operations meet it themselves
      await connection.backend.waitUntilReady();
      // Scripts may not be allowed: the first call sends the text, the second one its hash.
      for (let times = 0; times < 2; times++) await connection.jobs.getCounts(['active']);
    } catch (error) {
      connection.close();
      throw explain(error, address.url);
    }
    return connection;
  }

  /** The name of a key of ours. */
  key(name: string): string {
    return `gpu-owner-tasks:${this.address.name}:${name}`;
  }

  #repeated<T extends object>(target: () => T): T {
    return new Proxy({} as T, {
      get: (_, name) => {
        return (...args: never[]) =>
          this.perform(
            () =>
              (target() as Record<string | symbol, (...args: never[]) => Promise<unknown>>)[name]?.(
                ...args,
              ) as Promise<unknown>,
          );
      },
    });
  }

  /** A command that may be repeated, and learns whether it was. @throws ERR_QUEUE */
  async perform<T>(act: (client: IORedis.Redis, again: boolean) => Promise<T>): Promise<T> {
    const end = now() + RETRY_TIMEOUT_MS;
    let last: unknown = null;
    for (let again = false; ; again = true) {
      if (!this.isReady || this.#closed) await this.#ready(end, { last });
      try {
        return await act(this.client, again);
      } catch (error) {
        if (typeof (error as { code?: unknown }).code === 'number') throw error; // BullMQ's answer
        // The old connection would try again less and less often, and go on with a replica although the name leads to another server now.
        if (/timed out|^READONLY/.test(errorMessage(error)) && !this.#closed) this.client.disconnect(true);
        if (this.#closed || !isPassing(error) || now() > end) throw explain(error, this.address.url);
        last = error;
      }
      await sleep(50);
    }
  }

  get isReady(): boolean {
    return this.client.status === 'ready';
  }

  get isClosed(): boolean {
    return this.#closed;
  }

  close(): void {
    this.#closed = true;
    this.client.disconnect();
  }

  /**
   * @param strict an error that isn't passing ends the wait at once: nothing has worked yet
   * @param last the error of the try before, which tells more than that the time is over
   */
  async #ready(end: number, { strict = false, last = null as unknown } = {}): Promise<void> {
    const { url } = this.address;
    for (let milliseconds = 2; !this.isReady; milliseconds = Math.min(2 * milliseconds, 50)) {
      if (this.#closed) throw unusable(url, 'is closed', 'Open it again.');
      if (now() > end || (strict && this.#lastError !== null)) {
        const none = Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' });
        throw explain(this.#lastError ?? last ?? none, url);
      }
      await sleep(milliseconds);
    }
  }
}

/** In ms since the epoch: no other clock is compared with it. */
export async function serverTime(redis: Pick<RedisConnection['redis'], 'time'>): Promise<number> {
  const [seconds, microseconds] = await redis.time();
  return Number(seconds) * 1000 + Math.floor(Number(microseconds) / 1000);
}

/** Whether BullMQ has done what it was asked for; false: the job isn't there, isn't where it was said to be, or has another lock. */
export async function isDone(act: Promise<unknown>): Promise<boolean> {
  try {
    await act;
    return true;
  } catch (error) {
    if (typeof (error as { code?: unknown }).code === 'number') return false;
    throw error;
  }
}
