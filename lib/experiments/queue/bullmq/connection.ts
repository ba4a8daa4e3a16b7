import { createRequire } from 'node:module';
import { setTimeout as pause } from 'node:timers/promises';
import type * as BullMQ from 'bullmq';
import type * as IORedis from 'ioredis';
import { GPUOwnerError } from '../../../errors.ts';
import { now, sanitize, showValue, warnOnce } from '../../../platform/index.ts';
import { QueueRemovedError } from '../queue.ts';
import type { Address } from './address.ts';
import { refusalOf } from './refusal.ts';

const CONNECT_TIMEOUT_MS = 5_000;
const ANSWER_TIMEOUT_MS = 5_000;
/** How long an operation is retried while the server can't be reached. */
const RETRY_TIMEOUT_MS = 5_000;

/** @throws ERR_QUEUE where the packages of the Redis engine aren't installed: those who only claim GPUs don't need them */
function loadPackages(): typeof IORedis & Pick<typeof BullMQ, 'createRedisBackend'> {
  const require = createRequire(import.meta.filename);
  try {
    const { Redis } = require('ioredis') as typeof IORedis;
    const { createRedisBackend } = require('bullmq') as typeof BullMQ;
    return { Redis, createRedisBackend } as never;
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
  readonly jobs: BullMQ.RedisQueueBackend;
  /** Commands, in the same way. */
  readonly redis: IORedis.Redis;
  /** BullMQ's operations, each tried once, and the names of its keys. */
  backend!: BullMQ.RedisQueueBackend;
  readonly #createBackend: () => BullMQ.RedisQueueBackend;
  #lastError: unknown = null;
  #closed = false;
  #isNamed = false;

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
      } as never) as BullMQ.RedisQueueBackend;
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
      await checkServer(connection);
      connection.backend = connection.#createBackend();
      connection.backend.on('error', () => {}); // operations meet it themselves
      await connection.backend.waitUntilReady();
      // Scripts may not be allowed: the first call sends the text, the second one its hash.
      for (let times = 0; times < 2; times++) await connection.jobs.getCounts(['active']);
    } catch (error) {
      connection.close();
      throw explain((await refusalOf(address.connection, error)) ?? error, address.url);
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

  /** A command that may be repeated, and is told whether it was. @throws ERR_QUEUE */
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
        if (/timed out|^READONLY/.test((error as Error).message) && !this.#closed)
          this.client.disconnect(true);
        if (this.#closed || !isPassing(error) || now() > end) throw explain(error, this.address.url);
        last = error;
      }
      await pause(50);
    }
  }

  /** Names the connection as BullMQ names its workers', so that dashboards list this process. Never rejects. */
  async setName(host: string): Promise<void> {
    if (this.#isNamed) return;
    this.#isNamed = true;
    const queue = Buffer.from(this.address.name).toString('base64');
    // Longer names are refused.
    const name = `gpu-owner:${queue}:w:${host.replace(/[^A-Za-z0-9._-]/g, '_')}-${process.pid}`;
    this.client.options.connectionName = name; // for later connections
    await this.client.client('SETNAME', name).catch(() => {});
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
      await pause(milliseconds);
    }
  }
}

/** The oldest version of Redis that works. Valkey calls itself a newer one. */
const MIN_VERSION = [6, 2];
/** The version of our records. */
const FORMAT = 2;
/** Events that BullMQ keeps: results are in them, too. */
export const EVENTS = 1_000;

/** Refuses a server that would lose tasks, and warns of one that may lose some. @throws ERR_QUEUE */
async function checkServer(connection: RedisConnection): Promise<void> {
  const { url } = connection.address;
  const info = new Map(
    (await connection.perform((client) => client.info()))
      .split(/\r?\n/)
      .map((line) => line.split(/:(.*)/s).slice(0, 2) as [string, string]),
  );
  const version = info.get('redis_version') ?? '0';
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (
    major < (MIN_VERSION[0] as number) ||
    (major === MIN_VERSION[0] && minor < (MIN_VERSION[1] as number))
  ) {
    throw unusable(
      url,
      `is Redis ${sanitize(version, 20)}, which is too old`,
      `Redis ${MIN_VERSION.join('.')} or newer is needed, or Valkey.`,
    );
  }
  if (info.get('redis_mode') === 'sentinel') {
    throw unusable(
      url,
      'is a Sentinel, which has no data',
      'Name the server that it watches (redis-cli -p PORT SENTINEL get-master-addr-by-name NAME).',
    );
  }
  await connection.perform((client) => client.time()); // may have another name
  if (info.get('cluster_enabled') === '1') {
    throw unusable(url, 'is a cluster', 'Use a single Redis server: a queue does not work on a cluster.');
  }
  if (info.get('role') === 'slave') {
    throw unusable(url, 'is a replica, which takes no changes', 'Name the server that it copies.');
  }
  const policy = info.get('maxmemory_policy') ?? 'noeviction';
  if (policy !== 'noeviction' && info.get('maxmemory') !== '0') {
    throw unusable(
      url,
      `removes data when its memory is full (maxmemory-policy ${sanitize(policy, 40)}): tasks would be lost`,
      "Set 'maxmemory-policy noeviction' in redis.conf, or with: redis-cli CONFIG SET maxmemory-policy noeviction.",
    );
  }
  if (info.get('aof_enabled') !== '1') {
    warnOnce(
      sanitize(
        `the queue ${url} is kept in memory only (appendonly no): if Redis ends, tasks and results of the last minutes are lost. ` +
          "Set 'appendonly yes' in redis.conf, or with: redis-cli CONFIG SET appendonly yes.",
        500,
      ),
    );
  } else if (info.get('aof_last_write_status') === 'err') {
    warnOnce(`the queue ${url} can't write its file at the moment: make room on the disk of Redis.`);
  } else if ((await appendfsync(connection)) === 'no') {
    // With everysec, which is its default, a second of work is done again: that stands in the manual.
    warnOnce(
      sanitize(
        `the queue ${url} lets the system decide when its file is written to the disk (appendfsync no): a power cut loses tasks and results ` +
          "of up to half a minute. Set 'appendfsync always' or 'everysec' in redis.conf, or with: redis-cli CONFIG SET appendfsync always.",
        500,
      ),
    );
  }
}

/** The setting `appendfsync`: `always`, `everysec` or `no`. null: this user may not ask for it, as the manual advises. */
async function appendfsync(connection: RedisConnection): Promise<string | null> {
  const answer = await connection.perform((client) =>
    (client.config('GET', 'appendfsync') as Promise<string[]>).catch((error) => {
      if (isPassing(error)) throw error;
      return [];
    }),
  );
  return answer[1] ?? null;
}

/** @returns whether the queue exists @throws ERR_QUEUE for a queue of a newer version, and for foreign keys */
export async function checkFormat(connection: RedisConnection, create: boolean): Promise<boolean> {
  const { redis } = connection;
  const settings = connection.key('settings');
  let format = await redis.hget(settings, 'format');
  if (format === null && (await redis.exists(connection.key('names'))) === 1) format = ''; // a part was removed
  if (format === null && !create) return false;
  if (format === null) {
    await connection.jobs.setQueueMeta({ 'opts.maxLenEvents': EVENTS });
    await redis.hsetnx(settings, 'format', FORMAT);
    format = String(FORMAT);
  }
  if (!/^[1-9]\d*$/.test(format)) {
    const { url, name } = connection.address;
    throw unusable(
      url,
      `has ${showValue(format)} as its version, which isn't one of gpu-owner: its records are damaged, or belong to another program`,
      `Name another project=NAME. If nothing there is needed, remove it (redis-cli --scan --pattern 'gpu-owner*:${name}:*' | xargs redis-cli DEL) ` +
        'and start again; results that are in the tables are found there.',
    );
  }
  if (Number(format) < FORMAT) {
    throw unusable(
      connection.address.url,
      'was made by an older version of gpu-owner, whose records this one does not read',
      'Finish it with that version, or name another project=NAME and start again; results that are in the tables are found there.',
    );
  }
  if (Number(format) > FORMAT) {
    throw unusable(
      connection.address.url,
      `was made by a newer version (${sanitize(format, 20)}, this one knows ${FORMAT})`,
      'Update gpu-owner here.',
    );
  }
  return true;
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

/** The error where the records were removed: otherwise, all tasks would seem to be done. */
export function removed({ address }: RedisConnection): QueueRemovedError {
  return new QueueRemovedError(
    sanitize(
      `the queue ${address.url} was removed while it was in use: FLUSHALL, DEL, or a Redis that keeps nothing on disk and was started again. ` +
        'Start again; results that are in the tables are found there.',
      1_000,
    ),
  );
}

export function unusable(url: string, problem: string, remedy: string, cause?: unknown): GPUOwnerError {
  return new GPUOwnerError('ERR_QUEUE', sanitize(`the queue ${url} ${problem}. ${remedy}`, 1_000), { cause });
}

/** Whether an operation may work in a moment: the server is away, starts, or doesn't answer. */
function isPassing(error: unknown): boolean {
  const { message = '', code = '' } = error as NodeJS.ErrnoException;
  return (
    /^(?:E[A-Z]+|NR_CLOSED)$/.test(code) ||
    /^(?:LOADING|MASTERDOWN|TRYAGAIN|BUSY|READONLY)\b|Connection is closed|Command timed out|isn't writeable|max retries|ECONN|EPIPE|ETIMEDOUT/i.test(
      message,
    )
  );
}

/** Problems and remedies by Redis's message. */
const PROBLEMS: readonly [RegExp, problem: string, remedy: string][] = [
  [
    /^NOAUTH|HELLO must be called/,
    'requires a password',
    'Put it into GPU_OWNER_QUEUE_PASSWORD, or the name of a file that has it into GPU_OWNER_QUEUE_PASSWORD_FILE.',
  ],
  [
    /^WRONGPASS|invalid password|invalid username/i,
    'refuses the password',
    'Check GPU_OWNER_QUEUE_PASSWORD, and the user in the URL.',
  ],
  [
    /^NOPERM|ACL failure|can't access/,
    'refuses a command to this user',
    'It needs ~gpu-owner* +@all -@dangerous +info (see `gpu-owner docs many-machines`).',
  ],
  [
    /unknown (?:redis )?command/i,
    'lacks a command, or has renamed it (rename-command)',
    'Use a server that has EVAL, EVALSHA, INFO, TIME and the data commands under their own names.',
  ],
  [/^OOM/, "has no memory left ('maxmemory')", 'Raise maxmemory; acknowledged changes are kept.'],
  [/^MISCONF/, "can't write its file", 'Make room on its disk; see the log of Redis.'],
  [
    /^(?:MOVED|CLUSTERDOWN|CROSSSLOT)/,
    'is a cluster',
    'Use a single Redis server: a queue does not work on a cluster.',
  ],
  [
    /^DENIED/,
    'refuses connections from other machines: it is in protected mode, because it has no password',
    "Set 'requirepass' in redis.conf, and the password in GPU_OWNER_QUEUE_PASSWORD.",
  ],
  [
    /max number of clients/,
    'has as many connections as it accepts',
    "End some, or raise 'maxclients' in redis.conf.",
  ],
  [/ENOTFOUND|EAI_AGAIN/, "can't be reached: no such host", 'Check the host in --queue or GPU_OWNER_QUEUE.'],
  [
    /ECONNREFUSED/,
    "can't be reached: no server listens there",
    'Start Redis, or check host and port in --queue or GPU_OWNER_QUEUE.',
  ],
  [
    /ENOENT/,
    "can't be reached: there is no such socket",
    'Start Redis, or check the path in --queue or GPU_OWNER_QUEUE.',
  ],
  [
    /EACCES/,
    "can't be reached: permission denied",
    'Join the group of the socket, or change its mode (unixsocketperm).',
  ],
  [
    /DB index is out of range/,
    'is a database that this Redis does not have',
    "Name one from 0 to 15, or raise 'databases' in redis.conf.",
  ],
  [
    /^WRONGTYPE/,
    'has keys of another program',
    'Use another project=NAME, or another database; or remove these keys with the program that wrote them.',
  ],
  [
    /certificate|self.signed|ERR_TLS|ssl|TLS/i,
    "can't be trusted",
    'Add ?ca=FILE with the certificate of its authority, or name the host as the certificate has it.',
  ],
];

/** Turns an error into one for people, with the remedy. */
function explain(error: unknown, url: string): GPUOwnerError {
  if (error instanceof GPUOwnerError) return error;
  const { message = '', code = '' } = error as NodeJS.ErrnoException;
  const text = `${code} ${message}`.trim();
  // The server was no replica when it was opened.
  if (/^READONLY/.test(message)) {
    return new QueueRemovedError(
      sanitize(
        `the queue ${url} has become a replica, which takes no changes: another server was promoted. ` +
          'Name that server in --queue or GPU_OWNER_QUEUE, and start again.',
        1_000,
      ),
    );
  }
  const known = PROBLEMS.find(([pattern]) => pattern.test(message) || pattern.test(text));
  if (known !== undefined) return unusable(url, known[1], known[2], error);
  if (isPassing(error)) {
    return unusable(
      url,
      `doesn't answer (${sanitize(text, 200)})`,
      'Check that Redis runs, that it can be reached from here, and whether it uses TLS (rediss://) or not (redis://).',
      error,
    );
  }
  // An error inside of a script, or of BullMQ when it reads a job.
  if (/^(?:ReplyError|SyntaxError|TypeError|RangeError)$/.test((error as Error).name)) {
    return unusable(
      url,
      `has a record that is damaged (${sanitize(text, 200)})`,
      'If nothing there is needed, name another project=NAME and start again; results that are in the tables are found there.',
      error,
    );
  }
  return new GPUOwnerError('ERR_INTERNAL', sanitize(`the queue ${url}: ${text}`, 1_000), { cause: error });
}
