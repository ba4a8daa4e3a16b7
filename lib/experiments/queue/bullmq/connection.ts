import type * as IORedis from 'ioredis';
import { createRequire } from 'node:module';
import { setTimeout as pause } from 'node:timers/promises';
import { now, sanitize, showValue, warnOnce } from '../../../platform/index.ts';
import type { Address } from './address.ts';
import { explain, isPassing, unusable } from './errors.ts';
import { queueScripts, type Script } from './scripts.ts';

/** How long a connection, or an answer, may take, in ms. */
const CONNECT = 5_000;
const ANSWER = 5_000;
/** How long an operation is tried again while the server can't be reached, in ms. */
const PERSISTENCE = 5_000;

/** How often is looked for tasks whose worker has died, in ms. */
const STALLED = 1_000;

/** What Redis answers: text, numbers, null, lists of them. */
export type Answer = string | number | null | Answer[];

/** The one connection of a queue, and its operations, which are tried again for a while when it breaks. */
export class Connection {
  readonly address: Address;
  /** How long a sign of life is good for, in ms; and how often one is given. */
  readonly lock: number;
  readonly renewal: number;
  readonly client: IORedis.Redis;
  #scripts: ReadonlyMap<string, Script> = new Map();
  #lastError: unknown = null;
  #closed = false;
  #introduced = false;

  private constructor(address: Address, client: IORedis.Redis) {
    this.address = address;
    this.renewal = Math.min(2_000, address.patience / 5);
    this.lock = Math.ceil(address.patience + this.renewal + address.margin);
    this.client = client;
    client.on('error', (error) => {
      this.#lastError = error;
    });
    client.on('ready', () => {
      this.#lastError = null;
    });
  }

  /** @throws ERR_QUEUE if it isn't reached within 5 s */
  static async open(address: Address): Promise<Connection> {
    // Not imported: only those who have such a queue need it.
    const { Redis } = createRequire(import.meta.filename)('ioredis') as typeof IORedis;
    const options: IORedis.RedisOptions = {
      ...address.connection,
      lazyConnect: true,
      // Whoever waits does so here, for a limited time.
      enableOfflineQueue: false,
      autoResendUnfulfilledCommands: false,
      // What was sent when a connection broke is answered with an error at once.
      maxRetriesPerRequest: 0,
      connectTimeout: CONNECT,
      commandTimeout: ANSWER,
      retryStrategy: (times) => Math.min(50 * 2 ** Math.min(times, 10), 1_000),
      connectionName: 'gpu-owner',
    };
    const client = new Redis(options as never); // its overloads don’t fit exact optional properties
    const connection = new Connection(address, client);
    const { lock } = connection;
    connection.#scripts = await queueScripts(address.name, lock, Math.ceil(Math.min(STALLED, lock / 4)));
    try {
      void client.connect().catch((error) => {
        connection.#lastError ??= error;
      });
      await connection.#ready(now() + CONNECT, true);
      const { db } = address.connection;
      // The client is ready without having waited for that, and would go on in database 0.
      if (db) await client.select(db);
    } catch (error) {
      connection.close();
      throw explain(error, address.url);
    }
    return connection;
  }

  /** An operation of the script, which may be said again when it is not known whether it was heard. @throws ERR_QUEUE */
  async call<A extends Answer = Answer>(operation: string, ...args: (string | number)[]): Promise<A> {
    const { url } = this.address;
    const { sha, text, keys } = this.#scripts.get(operation) as Script;
    return (await this.perform(async (client, again) => {
      const words = [...keys, again ? '1' : '', operation, ...args];
      try {
        return await client.evalsha(sha, keys.length, ...words);
      } catch (error) {
        if (!/^NOSCRIPT/.test((error as Error).message)) throw error;
        return client.eval(text, keys.length, ...words);
      }
    }, url)) as A;
  }

  /** A command that may be repeated, and is told whether it was. @throws ERR_QUEUE */
  async perform<T>(
    act: (client: IORedis.Redis, again: boolean) => Promise<T>,
    url = this.address.url,
  ): Promise<T> {
    const end = now() + PERSISTENCE;
    for (let again = false; ; again = true) {
      await this.#ready(end);
      try {
        return await act(this.client, again);
      } catch (error) {
        // The old one would try again less and less often.
        if (/timed out/.test((error as Error).message) && !this.#closed) this.client.disconnect(true);
        if (this.#closed || !isPassing(error) || now() > end) throw explain(error, url);
      }
      await pause(50);
    }
  }

  /** From now on this process works on tasks: dashboards of BullMQ list it, by the name that its workers have. Never rejected. */
  async introduce(host: string): Promise<void> {
    if (this.#introduced) return;
    this.#introduced = true;
    const queue = Buffer.from(this.address.name).toString('base64');
    // What is more is refused.
    const name = `gpu-owner:${queue}:w:${host.replace(/[^A-Za-z0-9._-]/g, '_')}-${process.pid}`;
    this.client.options.connectionName = name; // of later connections
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

  /** @param strict an error that isn't passing ends the wait at once: nothing has worked yet */
  async #ready(end: number, strict = false): Promise<void> {
    const { url } = this.address;
    for (let milliseconds = 2; !this.isReady; milliseconds = Math.min(2 * milliseconds, 50)) {
      if (this.#closed) throw unusable(url, 'is closed', 'Open it again.');
      if (now() > end || (strict && this.#lastError !== null)) {
        throw explain(this.#lastError ?? Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' }), url);
      }
      await pause(milliseconds);
    }
  }
}

/** Of Redis; what Valkey says of itself is above. */
const OLDEST = [6, 2];
/** Of our records. */
const FORMAT = 1;

/** Refuses a server that would lose tasks, and warns of one that may. @throws ERR_QUEUE */
export async function checkServer(connection: Connection): Promise<void> {
  const { url } = connection.address;
  const info = new Map(
    (await connection.perform((client) => client.info()))
      .split(/\r?\n/)
      .map((line) => line.split(/:(.*)/s).slice(0, 2) as [string, string]),
  );
  const version = info.get('redis_version') ?? '0';
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major < (OLDEST[0] as number) || (major === OLDEST[0] && minor < (OLDEST[1] as number))) {
    throw unusable(
      url,
      `is Redis ${sanitize(version, 20)}, which is too old`,
      `Redis ${OLDEST.join('.')} or newer is needed, or Valkey.`,
    );
  }
  if (info.get('cluster_enabled') === '1') {
    throw unusable(url, 'is a cluster', 'Use a Redis of its own: a queue is on one server.');
  }
  if (info.get('role') === 'slave') {
    throw unusable(url, 'is a replica, which takes no changes', 'Name the server that it copies.');
  }
  const policy = info.get('maxmemory_policy') ?? 'noeviction';
  if (policy !== 'noeviction' && info.get('maxmemory') !== '0') {
    throw unusable(
      url,
      `throws data away when its memory is full (maxmemory-policy ${sanitize(policy, 40)}): tasks would be lost`,
      "Set 'maxmemory-policy noeviction' in redis.conf, or with: redis-cli CONFIG SET maxmemory-policy noeviction.",
    );
  }
  if (info.get('aof_enabled') !== '1') {
    warnOnce(
      sanitize(
        `the queue ${url} is kept in memory only (appendonly no): when Redis ends, tasks and results of the last minutes are lost. ` +
          "Set 'appendonly yes' in redis.conf, or with: redis-cli CONFIG SET appendonly yes.",
        500,
      ),
    );
  } else if (info.get('aof_last_write_status') === 'err') {
    warnOnce(`the queue ${url} can't write its file at the moment: make room on the disk of Redis.`);
  } else if ((await flushing(connection)) === 'no') {
    // With everysec, which is its default, a second of work is done again: that stands in the manual.
    warnOnce(
      sanitize(
        `the queue ${url} leaves it to the system when its file gets to the disk (appendfsync no): a power cut loses tasks and results ` +
          "of half a minute. Set 'appendfsync always' or 'everysec' in redis.conf, or with: redis-cli CONFIG SET appendfsync always.",
        500,
      ),
    );
  }
}

/** `always`, `everysec` or `no`; null: this user may not ask, as the manual advises for workers, or nobody may. */
async function flushing(connection: Connection): Promise<string | null> {
  const answer = await connection.perform((client) =>
    (client.config('GET', 'appendfsync') as Promise<string[]>).catch((error) => {
      if (isPassing(error)) throw error;
      return [];
    }),
  );
  return answer[1] ?? null;
}

/** @returns whether the queue is there @throws ERR_QUEUE for those of newer versions, and for what is no queue */
export async function checkFormat(connection: Connection, create: boolean): Promise<boolean> {
  const format = await connection.call<string | null>('open', create ? '1' : '0');
  if (format === null) return false;
  if (!/^[1-9]\d*$/.test(format)) {
    const { url, name } = connection.address;
    throw unusable(
      url,
      `has ${showValue(format)} as its version, which gpu-owner never writes: its records are damaged, or somebody else's`,
      `Name another project=NAME. If nothing there is needed, remove it (redis-cli --scan --pattern 'gpu-owner*:${name}:*' | xargs redis-cli DEL) ` +
        'and start again; results that are in the tables are found there.',
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
