import { closeSync, fstatSync, readdirSync, statSync } from 'node:fs';
import { EXCLUSIVE, errno, native, OFD } from '../../../native.ts';
import { processIds, readLink, readLocks, systemError, warnOnce } from '../../../platform/index.ts';
import { readCount, readJSON, readText } from '../records.ts';
import type { Database } from './database.ts';
import { openBeside, unusable } from './files.ts';

/** The byte of the manager. The byte of an attempt is its number, from 1. */
export const MANAGER = 0;

/** A lock that is held. It ends when all descriptors of its open file are closed, inherited ones too. */
export interface HeldLock {
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
  /** Never holds a lock: a probe doesn't see locks of its own open file. */
  readonly #probe: number;
  readonly #inode: string;
  readonly #readOnly: boolean;

  /** @param readOnly for a process that may not write */
  constructor(database: string, readOnly = false) {
    this.path = lockFileOf(database);
    this.#database = database;
    this.#readOnly = readOnly;
    this.#probe = openBeside(database, this.path, readOnly);
    this.#inode = inodeOf(this.#probe);
  }

  /** Locks a byte. null: somebody else has it. @throws ERR_QUEUE */
  take(byte: number): HeldLock | null {
    const descriptor = openBeside(this.#database, this.path);
    const error = native().lockTry(descriptor, OFD, EXCLUSIVE, byte, 1);
    if (error === 0) return { descriptor, inode: inodeOf(descriptor) };
    closeSync(descriptor);
    if (error === errno.EAGAIN) return null;
    throw unusable(this.path, `can't be locked: ${systemError(error)}`, 'Name another: --queue sqlite:PATH.');
  }

  /** Whether a byte is locked; true where that isn't known. @param inode of the lock file in which it was locked */
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
function lockFileOf(database: string): string {
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
 * Locks of attempts of a queue that was removed from this place while they ran. These attempts live as those of this queue do, and may
 * have any of its tasks.
 */
type OrphanedLocks = readonly (readonly [inode: string, byte: number])[];

const ORPHANS = 'forebears'; // the name of the setting in released queues
/** Locks that end notify nobody, so they are looked at again after this time. */
const RECHECK_MS = 1_000;

/** Finds the locks of a removed queue, as a setting of the queue that is being made. @param database the path of its file */
export function findOrphanedLocks(database: string): { key: string; value: string } | null {
  const locked = lockedBytes();
  if (locked.length === 0) return null;
  const path = lockFileOf(database);
  const inodes = removedFiles(path);
  const there = statSync(path, { throwIfNoEntry: false });
  if (there !== undefined) inodes.add(String(there.ino));
  const found: OrphanedLocks = locked.filter(([inode]) => inodes.has(inode));
  return found.length === 0 ? null : { key: ORPHANS, value: JSON.stringify(found) };
}

/** When to look again at orphaned locks, in ms since the epoch; null: none is left. Inside of a transaction. */
export function orphansRecheckTime(database: Database, locks: LockFile): number | null {
  return orphansIn(database, locks).length === 0 ? null : Date.now() + RECHECK_MS;
}

/** Whether orphaned locks are left; forgets those that have ended. Inside of a transaction that writes. */
export function hasOrphans(database: Database, locks: LockFile): boolean {
  if (database.setting(ORPHANS) === null) return false;
  const living = orphansIn(database, locks);
  if (living.length === 0) database.set(ORPHANS, null);
  return living.length > 0;
}

/** Warns that tasks wait for the end of orphaned locks. */
export async function warnOfOrphans(database: Database, locks: LockFile): Promise<void> {
  const { length } = await database.read(() => orphansIn(database, locks));
  if (length === 0) return;
  const [which, ones, them] =
    length === 1
      ? ['one of its tasks still runs', 'that one has', 'it']
      : [`${length} of its tasks still run`, 'they have', 'them'];
  warnOnce(
    `the previous queue in ${database.path} was removed, but ${which}. No task starts until ${ones} ended. ` +
      `To start sooner, end the gpu-owner that runs ${them}.`,
  );
}

function orphansIn(database: Database, locks: LockFile): OrphanedLocks {
  const text = database.setting(ORPHANS);
  if (text === null) return [];
  const list = readJSON(text);
  return (Array.isArray(list) ? (list as OrphanedLocks) : []).filter(
    (each) => Array.isArray(each) && locks.isTaken(readCount(each[1]), readText(each[0])),
  );
}

/** Finds single locked bytes in any file, except those of managers. */
function lockedBytes(): [inode: string, byte: number][] {
  return (readLocks() ?? [])
    .filter(({ kind, start, last }) => kind === 'OFDLCK' && start === last && start !== MANAGER)
    .map(({ inode, start }) => [String(inode), start]);
}

/** Finds inodes of files that had this name, and that processes of this user still have open. */
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
