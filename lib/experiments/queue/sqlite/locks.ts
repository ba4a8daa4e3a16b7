import { closeSync, fstatSync, statSync, readdirSync } from 'node:fs';
import { EXCLUSIVE, errno, native, OFD } from '../../../native.ts';
import { readLocks, systemError, processIds, readLink, warnOnce } from '../../../platform/index.ts';
import { unusable } from './errors.ts';
import { openBeside } from './files.ts';
import { readCount, readJSON, readText } from '../records.ts';
import type { Database } from './database.ts';

/** The byte of who manages; those of attempts are their numbers, from 1. */
export const MANAGER = 0;

/** A lock that is held; it ends when all descriptors of its open file are closed, also those that others have inherited. */
export interface Held {
  descriptor: number;
  /** The inode of the lock file, as attempts note it. */
  inode: string;
}

/**
 * The file beside the database whose locked bytes tell what lives. Locks of open files: the kernel ends them with their last
 * process, whatever happens to it.
 */
export class LockFile {
  readonly path: string;
  readonly #database: string;
  /** Never has a lock, as it wouldn't see its own. */
  readonly #probe: number;
  readonly #inode: string;
  readonly #readOnly: boolean;

  /** @param readOnly for those who only look */
  constructor(database: string, readOnly = false) {
    this.path = lockFileOf(database);
    this.#database = database;
    this.#readOnly = readOnly;
    this.#probe = openBeside(database, this.path, readOnly);
    this.#inode = inodeOf(this.#probe);
  }

  /** null: somebody else has it. @throws ERR_QUEUE */
  take(byte: number): Held | null {
    const descriptor = openBeside(this.#database, this.path);
    const error = native().lockTry(descriptor, OFD, EXCLUSIVE, byte, 1);
    if (error === 0) return { descriptor, inode: inodeOf(descriptor) };
    closeSync(descriptor);
    if (error === errno.EAGAIN) return null;
    throw unusable(this.path, `can't be locked: ${systemError(error)}`, 'Name another: --queue sqlite:PATH.');
  }

  /** @param inode of the lock file in which it was locked. In doubt, true. */
  isTaken(byte: number, inode: string = this.#inode): boolean {
    if (!Number.isSafeInteger(byte) || byte < 0) return false; // a damaged record
    if (inode === this.#inode || !/^\d+$/.test(inode)) return isLocked(this.#probe, byte);
    // Somebody has replaced the file.
    if (String(statSync(this.path, { throwIfNoEntry: false })?.ino) === inode) {
      const descriptor = openBeside(this.#database, this.path, this.#readOnly);
      try {
        return isLocked(descriptor, byte);
      } finally {
        closeSync(descriptor);
      }
    }
    return isListed(byte, inode);
  }

  close(): void {
    closeSync(this.#probe);
  }
}

/** The file with the locks of a database's attempts. */
export function lockFileOf(database: string): string {
  return `${database}-lock`;
}

function isLocked(descriptor: number, byte: number): boolean {
  return native().lockProbe(descriptor, OFD, EXCLUSIVE, byte, 1) !== -1;
}

/** Whether the kernel knows such a lock in a file that has no name any longer. */
function isListed(byte: number, inode: string): boolean {
  const locks = readLocks();
  if (locks === null) return true;
  return locks.some(
    (lock) =>
      lock.kind === 'OFDLCK' && String(lock.inode) === inode && lock.start === byte && lock.last === byte,
  );
}

function inodeOf(descriptor: number): string {
  return String(fstatSync(descriptor).ino);
}

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
