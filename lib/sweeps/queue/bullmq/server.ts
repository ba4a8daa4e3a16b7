// Checks of a server before its queue is used, and the reason with which a server refuses a connection.
import { connect as connectTCP } from 'node:net';
import { connect as connectTLS } from 'node:tls';
import type { Redis, RedisOptions } from 'ioredis';
import { asError } from '../../../errors.ts';
import { sanitize, warnOnce } from '../../../platform/index.ts';
import { unusable } from '../queue.ts';

/** Refuses a server that would lose tasks, and warns of one that may lose some. @throws ERR_QUEUE */
export async function checkServer(redis: Redis, url: string): Promise<void> {
  const warn = (problem: string) => warnOnce(sanitize(`the queue ${url} ${problem}.`, 500));
  const info = new Map(
    (await redis.info()).split(/\r?\n/).map((line) => line.split(/:(.*)/s).slice(0, 2) as [string, string]),
  );
  // Valkey calls itself a newer version of Redis.
  const version = info.get('redis_version') ?? '0';
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major < 6 || (major === 6 && minor < 2))
    throw unusable(
      url,
      `is Redis ${sanitize(version, 20)}, which is too old`,
      'Redis 6.2 or newer is needed, or Valkey.',
    );
  if (info.get('redis_mode') === 'sentinel') {
    throw unusable(
      url,
      'is a Sentinel, which has no data',
      'Name the server that it watches (redis-cli -p PORT SENTINEL get-master-addr-by-name NAME).',
    );
  }
  await redis.time(); // may have another name
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
    warn(
      'is kept in memory only (appendonly no): if Redis ends, tasks and results of the last minutes are lost. ' +
        "Set 'appendonly yes' in redis.conf, or with: redis-cli CONFIG SET appendonly yes",
    );
  } else if (info.get('aof_last_write_status') === 'err') {
    warn("can't write its file at the moment: make room on the disk of Redis");
  }
}

const ANSWER_TIMEOUT_MS = 1_000;
const MAX_LENGTH = 4_096;

/** Errors of a connection that the server has closed. */
const CLOSED = /EPIPE|ECONNRESET|Connection is closed/;

/**
 * Connects once more, sends nothing, and reads what the server says: a server that refuses a connection says why and closes at once, so
 * that a client which writes may never read it.
 * @param error with which a client has failed
 * @returns the server's own error; null: it says none, or this isn't about a closed connection
 */
export async function refusalOf(
  { host, port, path, tls }: RedisOptions,
  error: unknown,
): Promise<Error | null> {
  const { message, code = '' } = asError(error);
  if (!CLOSED.test(`${code} ${message}`)) return null;
  const where = path === undefined ? { host: host as string, port: port as number } : { path };
  const said = await new Promise<string>((resolve) => {
    let text = '';
    const socket = tls ? connectTLS({ ...where, ...tls }) : connectTCP(where);
    const end = () => {
      socket.destroy();
      resolve(text);
    };
    socket.setTimeout(ANSWER_TIMEOUT_MS, end);
    socket.on('data', (bytes) => {
      text += bytes;
      if (/\n/.test(text) || text.length > MAX_LENGTH) end();
    });
    socket.on('error', end).on('close', end);
  });
  const refusal = /^-([^\r\n]+)/.exec(said)?.[1];
  return refusal === undefined ? null : new Error(refusal);
}
