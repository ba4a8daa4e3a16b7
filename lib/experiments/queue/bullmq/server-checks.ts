import type { Redis } from 'ioredis';
import { sanitize, warnOnce } from '../../../platform/index.ts';
import { unusable } from './errors.ts';

/** The oldest version of Redis that works. Valkey calls itself a newer one. */
const MIN_VERSION = [6, 2];

/** Refuses a server that would lose tasks, and warns of one that may lose some. @throws ERR_QUEUE */
export async function checkServer(redis: Redis, url: string): Promise<void> {
  const info = new Map(
    (await redis.info()).split(/\r?\n/).map((line) => line.split(/:(.*)/s).slice(0, 2) as [string, string]),
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
    warnOnce(
      sanitize(
        `the queue ${url} is kept in memory only (appendonly no): if Redis ends, tasks and results of the last minutes are lost. ` +
          "Set 'appendonly yes' in redis.conf, or with: redis-cli CONFIG SET appendonly yes.",
        500,
      ),
    );
  } else if (info.get('aof_last_write_status') === 'err') {
    warnOnce(`the queue ${url} can't write its file at the moment: make room on the disk of Redis.`);
  } else if ((await appendfsync(redis)) === 'no') {
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
async function appendfsync(redis: Redis): Promise<string | null> {
  const answer = await (redis.config('GET', 'appendfsync') as Promise<string[]>).catch(() => []);
  return answer[1] ?? null;
}
