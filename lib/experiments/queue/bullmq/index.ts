import { createHash, randomUUID } from 'node:crypto';
import { realpathSync } from 'node:fs';
import { hostName } from '../../../platform/index.ts';
import { keepIdentity, readIdentity } from '../../project/index.ts';
import type { Queue } from '../queue.ts';
import { readRecord } from '../records.ts';
import { parseAddress } from './address.ts';
import { ATTEMPTS, attemptMethods, COMPLETE, TAKE } from './attempts.ts';
import { BULK, bulkMethods, ENQUEUE } from './bulk.ts';
import { bullmqLibrary, type JobAction } from './bullmq-scripts.ts';
import { checkFormat, checkServer, RedisConnection, type Script, unusable } from './connection.ts';
import { Leadership, LockRenewal, RENEWAL } from './lock-renewal.ts';
import { CLOCK, COMPLETION, FUNCTIONS, LAZY_FUNCTIONS } from './lua-functions.ts';
import { QUERIES, queryMethods } from './queries.ts';

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
  const connection = await RedisConnection.open(parseAddress(url, project), queueScripts);
  try {
    await checkServer(connection);
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
  const text = await connection.call<string | null>('project', create ? JSON.stringify(here) : '');
  if (text === null) return; // it was shared until now
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
  const renewal = new LockRenewal(connection);
  const leadership = new Leadership(connection, renewal);
  return {
    url: connection.address.url,
    ...queryMethods(connection),
    ...attemptMethods(connection, renewal),
    ...bulkMethods(connection),
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

/** Answers an error where somebody has removed the records: otherwise, all tasks would seem to be done. */
const GUARD = `
local function queueRemoved()
  return rcall('HEXISTS', P .. 'settings', 'format') == 0 and redis.error_reply('GONE no records') or nil
end
`;

/** The actions on a task's job when its attempt is over. */
const RELEASE: readonly JobAction[] = ['add', 'completed', 'failed', 'retry', 'delay', 'remove'];

interface Part {
  text: string;
  /** The scripts of BullMQ that it calls. */
  actions: readonly JobAction[];
  /** Whether an operation fails where the records were removed. */
  guarded: boolean;
  /** Whether it runs with every task. */
  frequent?: true;
}

/** Operations by subject, a script each: each operation pays for everything in its script. */
const PARTS: readonly Part[] = [
  { text: ENQUEUE, actions: ['add', 'remove'], guarded: true },
  // These two find nothing in a queue that was removed.
  {
    text: GUARD + TAKE,
    actions: [...RELEASE, 'moveToActive', 'moveStalled'],
    guarded: false,
    frequent: true,
  },
  { text: COMPLETION + COMPLETE, actions: RELEASE, guarded: false, frequent: true },
  { text: ATTEMPTS, actions: RELEASE, guarded: false },
  { text: RENEWAL, actions: [...RELEASE, 'extendLock', 'moveStalled'], guarded: false },
  { text: BULK, actions: [...RELEASE, 'pause', 'resume'], guarded: true },
  { text: QUERIES, actions: [], guarded: true },
];
/** Operations of guarded parts that have an answer of their own where there are no records. */
const UNGUARDED = ['open', 'release'];

/**
 * Makes the scripts of a queue, by operation: see `ScriptFactory`. How long a lock lasts stands in them, and in frequent ones the names of
 * keys: words that are sent and texts that are put together cost something with each call.
 */
async function queueScripts(
  name: string,
  lock: number,
  interval: number,
): Promise<ReadonlyMap<string, Script>> {
  const scripts = new Map<string, Script>();
  const prefixes = [`gpu-owner-tasks:${name}:`, `gpu-owner:${name}:`] as const;
  const withPrefixes = (text: string) =>
    text.replace(/\b([PB]) \.\. '/g, (_, which) => `'${prefixes[which === 'P' ? 0 : 1]}`);
  for (const { text: part, actions, guarded, frequent = false } of PARTS) {
    const names = [...part.matchAll(/^function operations\.(\w+)/gm)].map(([, name]) => name as string);
    const text = [
      'local rcall = redis.call',
      `local P, B = ${frequent ? prefixes.map((prefix) => `'${prefix}'`).join(', ') : 'KEYS[1], KEYS[2]'}`,
      "local AGAIN = ARGV[1] == '1'",
      `local LOCK, INTERVAL = '${lock}', '${interval}'`,
      // A table that grows is made again each time.
      `local operations = {${names.map((name) => `${name} = false`).join(', ')}}`,
      // NOW is in its calls.
      CLOCK,
      await bullmqLibrary(actions, frequent ? prefixes[1] : null),
      frequent ? withPrefixes(LAZY_FUNCTIONS) : FUNCTIONS,
      ...(guarded ? [GUARD] : []),
      frequent ? withPrefixes(part) : part,
      ...(guarded
        ? [
            `if ${UNGUARDED.map((name) => `ARGV[2] ~= '${name}'`).join(' and ')} and queueRemoved() then return queueRemoved() end`,
          ]
        : []),
      'return operations[ARGV[2]](unpack(ARGV, 3))',
    ].join('\n');
    const sha = createHash('sha1').update(text).digest('hex');
    const script = { text, sha, keys: frequent ? [] : prefixes };
    for (const name of names) scripts.set(name, script);
  }
  return scripts;
}
