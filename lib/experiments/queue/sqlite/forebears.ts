import { readdirSync, statSync } from 'node:fs';
import { processIds, readLink, readLocks, warnOnce } from '../../../platform/index.ts';
import { readCount, readJSON, readText } from '../records.ts';
import type { Database } from './database.ts';
import { type LockFile, lockFileOf, MANAGER } from './locks.ts';

/**
 * Attempts of a queue that was removed from this place while they ran: their locks, by the inode of the lock file. They live as those of
 * this queue do, and may have any of its tasks.
 */
type Forebears = readonly (readonly [inode: string, byte: number])[];

const SETTING = 'forebears';
/** When it is worth looking again, in ms: locks that end tell nobody. */
const LOOK_AGAIN = 1_000;

/** Those of a queue that is being made, as its setting. @param database the path of its file */
export function findForebears(database: string): { key: string; value: string } | null {
  const locked = lockedBytes();
  if (locked.length === 0) return null;
  const path = lockFileOf(database);
  const inodes = removedFiles(path);
  const there = statSync(path, { throwIfNoEntry: false });
  if (there !== undefined) inodes.add(String(there.ino));
  const found: Forebears = locked.filter(([inode]) => inodes.has(inode));
  return found.length === 0 ? null : { key: SETTING, value: JSON.stringify(found) };
}

/** When to ask again whether they have ended, in ms since the epoch; null: none is left. Inside of a transaction. */
export function untilForebears(database: Database, locks: LockFile): number | null {
  return livingForebears(database, locks).length === 0 ? null : Date.now() + LOOK_AGAIN;
}

/** As {@link untilForebears}, and forgets those that have ended. Inside of a transaction that writes. */
export function awaitsForebears(database: Database, locks: LockFile): boolean {
  if (database.setting(SETTING) === null) return false;
  const living = livingForebears(database, locks);
  if (living.length === 0) database.set(SETTING, null);
  return living.length > 0;
}

/** Tells people what tasks wait for. */
export async function tellOfForebears(database: Database, locks: LockFile): Promise<void> {
  const living = await database.read(() => livingForebears(database, locks));
  if (living.length === 0) return;
  warnOnce(
    `the queue that was in ${database.path} before was removed while ${living.length === 1 ? 'a task of it ran, which still does' : `tasks of it ran, and ${living.length} still do`}: ` +
      'no task is given out before that has ended. To have it sooner, end the gpu-owner that runs it.',
  );
}

function livingForebears(database: Database, locks: LockFile): Forebears {
  const text = database.setting(SETTING);
  if (text === null) return [];
  const list = readJSON(text);
  return (Array.isArray(list) ? (list as Forebears) : []).filter(
    (each) => Array.isArray(each) && locks.isTaken(readCount(each[1]), readText(each[0])),
  );
}

/** Single bytes that somebody has locked in any file, but for those of managers. */
function lockedBytes(): [inode: string, byte: number][] {
  return (readLocks() ?? [])
    .filter(({ kind, start, last }) => kind === 'OFDLCK' && start === last && start !== MANAGER)
    .map(({ inode, start }) => [String(inode), start]);
}

/** Inodes of files that had this name, and that processes of this user still have open. */
function removedFiles(path: string): Set<string> {
  const name = `${path} (deleted)`;
  const inodes = new Set<string>();
  for (const pid of processIds()) {
    const directory = `/proc/${pid}/fd`;
    try {
      for (const descriptor of readdirSync(directory)) {
        const link = `${directory}/${descriptor}`;
        const file = readLink(link) === name ? statSync(link, { throwIfNoEntry: false }) : undefined;
        if (file !== undefined) inodes.add(String(file.ino));
      }
    } catch {} // it is somebody else's, or has just ended
  }
  return inodes;
}
