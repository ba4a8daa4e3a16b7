import { sanitize, showValue, warnOnce } from '../../../platform/index.ts';
import type { Connection } from './connection.ts';
import { isPassing, unusable } from './errors.ts';

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
