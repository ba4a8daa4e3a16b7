import { createHash } from 'node:crypto';
import { ARRIVAL, SELECTIONS } from './bulk.ts';
import { COMPLETE, ENDINGS, TAKE } from './attempts.ts';
import { LISTS } from './queries.ts';
import { ALSO, CLOCK, COMPLETION, RECORDS } from './lua-functions.ts';
import { SIGNS } from './lock-renewal.ts';
import { bullmqLibrary, type TicketAction } from './bullmq-scripts.ts';

/**
 * `EVALSHA sha 2 P B AGAIN OPERATION …`: our keys' and BullMQ's prefix; 1: it may have been heard already, or nothing. Scripts of one queue
 * know the prefixes: `EVALSHA sha 0 AGAIN OPERATION …`.
 */
export interface Script {
  text: string;
  sha: string;
  /** The prefixes, if it has to be told them. */
  keys: readonly string[];
}

/** Answers an error where somebody has removed the records: without it, that would look as if all was done. */
const GUARD = `
local function gone()
  return rcall('HEXISTS', P .. 'settings', 'format') == 0 and redis.error_reply('GONE no records') or nil
end
`;

/** Where the job of a task goes when its attempt is over. */
const RELEASE: readonly TicketAction[] = ['add', 'completed', 'failed', 'retry', 'delay', 'remove'];

/**
 * Operations by subject, a script each, with what they need of BullMQ. All in one would be simpler, but whatever stands in a script
 * is paid for by each of its operations.
 */
const PARTS: readonly { text: string; actions: readonly TicketAction[]; guarded: boolean; often?: true }[] = [
  { text: RECORDS + ARRIVAL, actions: ['add', 'remove'], guarded: true },
  // Those that come with every task find nothing in a queue that is gone.
  { text: GUARD + TAKE, actions: [...RELEASE, 'moveToActive', 'moveStalled'], guarded: false, often: true },
  { text: COMPLETION + COMPLETE, actions: RELEASE, guarded: false, often: true },
  { text: RECORDS + ENDINGS, actions: RELEASE, guarded: false },
  { text: RECORDS + SIGNS, actions: [...RELEASE, 'extendLock', 'moveStalled'], guarded: false },
  { text: RECORDS + SELECTIONS, actions: [...RELEASE, 'pause', 'resume'], guarded: true },
  { text: RECORDS + LISTS, actions: [], guarded: true },
];
/** They have their own answer where the queue is gone, or isn't there as yet. */
const UNGUARDED = ['open', 'release'];

/**
 * By operation. How long a lock lasts stands in them, since words that are sent cost something with each call; in those that come with
 * every task, so do names of keys, which needn't be put together then. As Redis keeps all scripts, the others are the same for all queues.
 * @param name of the queue @param lock for how long a sign of life is good, in ms @param interval between checks, in ms
 */
export async function queueScripts(
  name: string,
  lock: number,
  interval: number,
): Promise<ReadonlyMap<string, Script>> {
  const scripts = new Map<string, Script>();
  const prefixes = [`gpu-owner-tasks:${name}:`, `gpu-owner:${name}:`] as const;
  const named = (text: string) =>
    text.replace(/\b([PB]) \.\. '/g, (_, which) => `'${prefixes[which === 'P' ? 0 : 1]}`);
  for (const { text: part, actions, guarded, often = false } of PARTS) {
    const names = [...part.matchAll(/^function operations\.(\w+)/gm)].map(([, name]) => name as string);
    const text = [
      'local rcall = redis.call',
      `local P, B = ${often ? prefixes.map((prefix) => `'${prefix}'`).join(', ') : 'KEYS[1], KEYS[2]'}`,
      "local AGAIN = ARGV[1] == '1'",
      `local LOCK, INTERVAL = '${lock}', '${interval}'`,
      // A table that grows is made again each time.
      `local operations = {${names.map((name) => `${name} = false`).join(', ')}}`,
      // NOW is in its calls.
      CLOCK,
      await bullmqLibrary(actions, often ? prefixes[1] : null),
      often ? named(ALSO) : ALSO,
      ...(guarded ? [GUARD] : []),
      often ? named(part) : part,
      ...(guarded
        ? [
            `if ${UNGUARDED.map((name) => `ARGV[2] ~= '${name}'`).join(' and ')} and gone() then return gone() end`,
          ]
        : []),
      'return operations[ARGV[2]](unpack(ARGV, 3))',
    ].join('\n');
    const sha = createHash('sha1').update(text).digest('hex');
    const script = { text, sha, keys: often ? [] : prefixes };
    for (const name of names) scripts.set(name, script);
  }
  return scripts;
}
