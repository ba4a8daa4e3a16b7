import type { Redis } from 'ioredis';
import { sanitize, warnOnce } from '../../../platform/index.ts';
import { unusable } from '../queue.ts';

/** Refuses a server that would lose tasks, and warns of one that may lose some. @throws ERR_QUEUE */
export async function checkServer(redis: Redis, url: string): Promise<void> {
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
  const mode = info.get('redis_mode') ?? 'standalone';
  if (mode !== 'standalone')
    throw unusable(url, `is a ${sanitize(mode, 20)}`, 'Name a single server: a queue works on no other.');
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
    const problem = `the queue ${url} is kept in memory only (appendonly no): if Redis ends, tasks and results of the last minutes are lost.`;
    const remedy = "Set 'appendonly yes' in redis.conf, or with: redis-cli CONFIG SET appendonly yes";
    warnOnce(sanitize(`${problem} ${remedy}`, 500));
  }
}
