import { closeSync, fstatSync } from 'node:fs';
import { EXCLUSIVE, errno, native, OFD } from '../../../native.ts';
import { systemError } from '../../../platform/index.ts';
import { unusable } from '../queue.ts';
import type { Database } from './database.ts';
import { openBeside, removed } from './files.ts';

/** The byte of the manager. The byte of an attempt is its number, from 1. */
export const MANAGER = 0;

/**
 * The file beside the database whose locked bytes tell what lives. Locks of open files: the kernel ends them with their last
 * process, whatever happens to it.
 */
export class LockFile {
  readonly path: string;
  readonly #database: string;
  /** Never holds a lock: a probe doesn't see locks of its own open file. */
  readonly #probe: number;

  constructor(database: Database) {
    this.#database = database.path;
    this.path = `${database.path}-lock`;
    this.#probe = openBeside(this.#database, this.path);
    database.watch(this.path, fstatSync(this.#probe).ino);
  }

  /**
   * Locks a byte. @returns a descriptor: the lock ends when all copies of it are closed, inherited ones too; null: another process has it
   * @throws ERR_QUEUE
   */
  take(byte: number): number | null {
    const descriptor = openBeside(this.#database, this.path);
    const isSame = fstatSync(descriptor).ino === fstatSync(this.#probe).ino;
    const error = isSame ? native().lockTry(descriptor, OFD, EXCLUSIVE, byte, 1) : 0;
    if (isSame && error === 0) return descriptor;
    closeSync(descriptor);
    if (!isSame) throw removed(this.#database);
    if (error === errno.EAGAIN) return null;
    throw unusable(this.path, `can't be locked: ${systemError(error)}`, 'Name another: --queue sqlite:PATH.');
  }

  isTaken(byte: number): boolean {
    return native().lockProbe(this.#probe, OFD, EXCLUSIVE, byte, 1) !== -1;
  }

  close(): void {
    closeSync(this.#probe);
  }
}
