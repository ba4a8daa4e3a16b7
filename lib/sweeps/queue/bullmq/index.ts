import { realpathSync } from 'node:fs';
import { hostName, schema, showValue } from '../../../platform/index.ts';
import { type Queue, type StepValue, unusable } from '../queue.ts';
import { readRecord } from '../records.ts';
import { settingMethods } from '../settings.ts';
import { parseAddress } from './address.ts';
import { attemptMethods } from './attempts.ts';
import { bulkMethods } from './bulk.ts';
import { EVENTS, RedisConnection } from './connection.ts';
import { Leadership, LockRenewal } from './lock-renewal.ts';
import { queryMethods } from './queries.ts';
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

const PROJECT = schema.jsonOf(schema.record({ host: schema.text, directory: schema.text }));

/**
 * Refuses the list of another directory of this machine with the same name: each would run the other's commands.
 * @throws ERR_QUEUE
 */
async function checkProject(connection: RedisConnection, project: string, create: boolean): Promise<void> {
  const here = { host: hostName(), directory: realpathSync(project) };
  const settings = connection.key('settings');
  if (create) await connection.redis.hsetnx(settings, 'project', JSON.stringify(here));
  const text = await connection.redis.hget(settings, 'project');
  if (text === null) return; // the list was shared until now
  const { host, directory } = readRecord('the project', PROJECT, text);
  if (host !== here.host || directory === here.directory) return;
  throw unusable(
    connection.address.url,
    `belongs to another project, in ${directory} on ${host}, and its tasks would run here`,
    'Name this list otherwise (?project=NAME), or that directory with --project. Projects that share a list have ?share=yes in all their URLs.',
  );
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
    ...settingMethods({
      async read(key) {
        await store.check();
        return store.redis.hget(store.key('settings'), key);
      },
      async change(key, next) {
        const settings = store.key('settings');
        const text = next(await this.read(key));
        if (text === null) await store.redis.hdel(settings, key);
        else await store.redis.hset(settings, key, text);
        await store.notify();
      },
    }),
    report: (value) => report(store, value),
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

async function report(store: JobStore, { phase, id, step, value }: StepValue): Promise<number[]> {
  await store.check();
  const key = store.key(`report:${step}:${phase}`);
  await store.redis.hset(key, id, value);
  const { [id]: _, ...others } = await store.redis.hgetall(key);
  return Object.values(others).map(Number);
}

/** The version of our records. */
const FORMAT = '1';

/** @returns whether the queue exists @throws ERR_QUEUE for a queue of another version, and for foreign keys */
async function checkFormat(connection: RedisConnection, create: boolean): Promise<boolean> {
  const { redis } = connection;
  const settings = connection.key('settings');
  const format = await redis.hget(settings, 'format');
  if (format === FORMAT) return true;
  // Where only settings were removed, it is damaged.
  if (format !== null || (await redis.exists(connection.key('names'))) === 1) {
    const { url, name } = connection.address;
    throw unusable(
      url,
      `has version ${showValue(format ?? '')}, and this gpu-owner knows ${FORMAT}: it is of another version, of another program, or damaged`,
      `Name another project=NAME. If nothing there is needed, remove it (redis-cli --scan --pattern 'gpu-owner*:${name}:*' | xargs redis-cli DEL) ` +
        'and start again; results that are in the tables are found there.',
    );
  }
  if (!create) return false;
  await connection.jobs.setQueueMeta({ 'opts.maxLenEvents': EVENTS });
  await redis.hsetnx(settings, 'format', FORMAT);
  return true;
}
