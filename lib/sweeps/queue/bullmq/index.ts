import { randomUUID } from 'node:crypto';
import { realpathSync } from 'node:fs';
import { hostName, sanitize, showValue } from '../../../platform/index.ts';
import { keepIdentity, readIdentity } from '../../project/index.ts';
import { type Queue, unusable } from '../queue.ts';
import { readRecord } from '../records.ts';
import { parseAddress } from './address.ts';
import { attemptMethods } from './attempts.ts';
import { bulkMethods } from './bulk.ts';
import { EVENTS, RedisConnection } from './connection.ts';
import { Leadership, LockRenewal } from './lock-renewal.ts';
import { queryMethods } from './queries.ts';
import { settingMethods } from './settings.ts';
import { JobStore } from './store.ts';

/**
 * Opens the queue of a project on Redis: see `parseAddress` for URLs.
 * @returns null: there is none, and it isn't to be made
 * @throws ERR_QUEUE, ERR_INVALID_ARGUMENT
 */
export async function openBullMQQueue(
  url: string,
  project: string,
  { create, takesPart }: { create: boolean; takesPart: boolean },
): Promise<Queue | null> {
  const connection = await RedisConnection.open(parseAddress(url, project));
  try {
    if (await checkFormat(connection, create)) {
      if (takesPart && !connection.address.isShared) await checkProject(connection, project, create);
      return assemble(connection);
    }
  } catch (error) {
    connection.close();
    throw error;
  }
  connection.close();
  return null;
}

/**
 * Refuses the list of another project, whose directory has the same name: each would run the other's commands. A checkout on another host
 * has no identity yet, and takes that of the list.
 * @throws ERR_QUEUE
 */
async function checkProject(connection: RedisConnection, project: string, create: boolean): Promise<void> {
  const known = readIdentity(project);
  const here = { id: known ?? randomUUID(), host: hostName(), directory: realpathSync(project) };
  const settings = connection.key('settings');
  if (create) await connection.redis.hsetnx(settings, 'project', JSON.stringify(here));
  const text = await connection.redis.hget(settings, 'project');
  if (text === null) return; // the list was shared until now
  const { id, host, directory } = readRecord(text);
  const isElsewhere = host === here.host && directory !== here.directory;
  if (known === null ? create && isElsewhere : id !== known) {
    throw unusable(
      connection.address.url,
      `belongs to another project, in ${directory} on ${host}, and its tasks would run here`,
      'Name this list otherwise (?project=NAME), or that directory with --project. Projects that share a list have ?share=yes in all their URLs.',
    );
  }
  if (create && known === null && typeof id === 'string') keepIdentity(project, id);
}

function assemble(connection: RedisConnection): Queue {
  const store = new JobStore(connection);
  const renewal = new LockRenewal(store);
  const leadership = new Leadership(store, renewal);
  return {
    url: connection.address.url,
    ...queryMethods(store),
    ...attemptMethods(store, renewal),
    ...bulkMethods(store),
    ...settingMethods(store),
    changed: (milliseconds, signal, since) => renewal.changed(milliseconds, signal, since),
    get changeCount() {
      return renewal.changeCount;
    },
    manage: (who) => leadership.take(who),
    manager: () => leadership.current(),
    async close() {
      if (connection.isClosed) return;
      // Without Redis, the leader's lock expires.
      if (connection.isReady) await leadership.release().catch(() => {});
      renewal.close();
      connection.close();
    },
  };
}

/** The version of our records. */
const FORMAT = 1;

/** @returns whether the queue exists @throws ERR_QUEUE for a queue of a newer version, and for foreign keys */
async function checkFormat(connection: RedisConnection, create: boolean): Promise<boolean> {
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
  if (Number(format) !== FORMAT) {
    throw unusable(
      connection.address.url,
      `was made by another version (${sanitize(format, 20)}, this one knows ${FORMAT})`,
      'Use that gpu-owner, or name another project=NAME.',
    );
  }
  return true;
}
