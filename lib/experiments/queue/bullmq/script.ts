import { createHash } from 'node:crypto';
import { ARRIVAL } from './lua/arrival.ts';
import { ATTEMPTS } from './lua/attempts.ts';
import { LISTS } from './lua/lists.ts';
import { RECORDS } from './lua/records.ts';
import { SELECTIONS } from './lua/selections.ts';
import { bullmqLibrary } from './tickets.ts';

/** `EVALSHA sha 2 P B LOCK INTERVAL OPERATION …`: our keys' and BullMQ's prefix; for how long a sign of life is good, in ms; between checks, in ms. */
export interface Script {
  text: string;
  sha: string;
}

let made: Promise<Script> | undefined;

/** All operations are one script: Redis compiles it once. */
export function queueScript(): Promise<Script> {
  made ??= make();
  return made;
}

async function make(): Promise<Script> {
  const text = [
    'local rcall = redis.call',
    'local P, B, LOCK, INTERVAL = KEYS[1], KEYS[2], ARGV[1], ARGV[2]',
    'local operations = {}',
    await bullmqLibrary(),
    RECORDS,
    ARRIVAL,
    ATTEMPTS,
    SELECTIONS,
    LISTS,
    'return operations[ARGV[3]](unpack(ARGV, 4))',
  ].join('\n');
  return { text, sha: createHash('sha1').update(text).digest('hex') };
}
