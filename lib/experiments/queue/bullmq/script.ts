import { createHash } from 'node:crypto';
import { ARRIVAL } from './lua/arrival.ts';
import { ENDINGS } from './lua/endings.ts';
import { LISTS } from './lua/lists.ts';
import { CLOCK, RECORDS } from './lua/records.ts';
import { SELECTIONS } from './lua/selections.ts';
import { SIGNS } from './lua/signs.ts';
import { TAKE } from './lua/take.ts';
import { bullmqLibrary, type TicketAction } from './tickets.ts';

/**
 * `EVALSHA sha 2 P B LOCK INTERVAL AGAIN OPERATION …`: our keys' and BullMQ's prefix; for how long a sign of life is good, in ms; between
 * checks, in ms; 1: it may have been heard already.
 */
export interface Script {
  text: string;
  sha: string;
}

/** Where the job of a task goes when its attempt is over. */
const RELEASE: readonly TicketAction[] = ['add', 'completed', 'failed', 'retry', 'delay', 'remove'];

/**
 * Operations by subject, a script each, with what they need of BullMQ. All in one would be simpler, but whatever stands in a script
 * is paid for by each of its operations.
 */
const PARTS: readonly { text: string; actions: readonly TicketAction[]; guarded: boolean }[] = [
  { text: ARRIVAL, actions: ['add', 'remove'], guarded: true },
  // Those that come with every task find nothing in a queue that is gone.
  { text: TAKE, actions: [...RELEASE, 'moveToActive', 'moveStalled'], guarded: false },
  { text: ENDINGS, actions: RELEASE, guarded: false },
  { text: SIGNS, actions: [...RELEASE, 'extendLock', 'moveStalled'], guarded: false },
  { text: SELECTIONS, actions: [...RELEASE, 'pause', 'resume'], guarded: true },
  { text: LISTS, actions: [], guarded: true },
];
/** They have their own answer where the queue is gone, or isn't there as yet. */
const UNGUARDED = ['open', 'release'];

/** Answers an error where somebody has removed the records: without it, that would look as if all was done. */
const GUARD = `
local function gone()
  return rcall('HEXISTS', P .. 'settings', 'format') == 0 and redis.error_reply('GONE no records') or nil
end
`;

let made: Promise<Map<string, Script>> | undefined;

/** By operation. */
export function queueScripts(): Promise<ReadonlyMap<string, Script>> {
  made ??= make();
  return made;
}

async function make(): Promise<Map<string, Script>> {
  const scripts = new Map<string, Script>();
  for (const { text: part, actions, guarded } of PARTS) {
    const names = [...part.matchAll(/^function operations\.(\w+)/gm)].map(([, name]) => name as string);
    const text = [
      'local rcall = redis.call',
      "local P, B, LOCK, INTERVAL, AGAIN = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3] == '1'",
      // A table that grows is made again each time.
      `local operations = {${names.map((name) => `${name} = false`).join(', ')}}`,
      // NOW is in its calls.
      CLOCK,
      await bullmqLibrary(actions),
      GUARD,
      RECORDS,
      part,
      ...(guarded
        ? [
            `if ${UNGUARDED.map((name) => `ARGV[4] ~= '${name}'`).join(' and ')} and gone() then return gone() end`,
          ]
        : []),
      'return operations[ARGV[4]](unpack(ARGV, 5))',
    ].join('\n');
    const script = { text, sha: createHash('sha1').update(text).digest('hex') };
    for (const name of names) scripts.set(name, script);
  }
  return scripts;
}
