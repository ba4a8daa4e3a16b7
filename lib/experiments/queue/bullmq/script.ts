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
const PARTS: readonly (readonly [text: string, actions: readonly TicketAction[]])[] = [
  [ARRIVAL, ['add', 'remove']],
  [TAKE, [...RELEASE, 'moveToActive', 'moveStalled']],
  [ENDINGS, RELEASE],
  [SIGNS, [...RELEASE, 'extendLock', 'moveStalled']],
  [SELECTIONS, [...RELEASE, 'pause', 'resume']],
  [LISTS, []],
];

let made: Promise<Map<string, Script>> | undefined;

/** By operation. */
export function queueScripts(): Promise<ReadonlyMap<string, Script>> {
  made ??= make();
  return made;
}

async function make(): Promise<Map<string, Script>> {
  const scripts = new Map<string, Script>();
  for (const [part, actions] of PARTS) {
    const names = [...part.matchAll(/^function operations\.(\w+)/gm)].map(([, name]) => name as string);
    const text = [
      'local rcall = redis.call',
      "local P, B, LOCK, INTERVAL, AGAIN = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3] == '1'",
      // A table that grows is made again each time.
      `local operations = {${names.map((name) => `${name} = false`).join(', ')}}`,
      // NOW is in its calls.
      CLOCK,
      await bullmqLibrary(actions),
      RECORDS,
      part,
      'return operations[ARGV[4]](unpack(ARGV, 5))',
    ].join('\n');
    const script = { text, sha: createHash('sha1').update(text).digest('hex') };
    for (const name of names) scripts.set(name, script);
  }
  return scripts;
}
