import { closeSync, fstatSync, statSync } from 'node:fs';
import { EXCLUSIVE, errno, native, OFD } from '../../../native.ts';
import { readLocks, systemError } from '../../../platform/index.ts';
import { unusable } from '../queue.ts';
import { openBeside } from './files.ts';

/** The byte of the manager. The byte of an attempt is its number, from 1. */
export const MANAGER = 0;

/** A lock that is held. The lock ends when all descriptors of its open file are closed, inherited ones too. */
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

  constructor(database: string) {
    this.path = lockFileOf(database);
    this.#database = database;
    this.#probe = openBeside(database, this.path);
    this.#inode = inodeOf(this.#probe);
  }

  /** Locks a byte. null: another process has it. @throws ERR_QUEUE */
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
    // The file was replaced.
    if (String(statSync(this.path, { throwIfNoEntry: false })?.ino) === inode) {
      const descriptor = openBeside(this.#database, this.path);
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
