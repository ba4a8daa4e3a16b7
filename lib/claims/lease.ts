import { closeSync } from 'node:fs';
import { GPUOwnerError } from '../errors.ts';
import { EXCLUSIVE, errno, FLOCK, native, OFD, SHARED } from '../native.ts';
import { bootMilliseconds, pathIn, systemError } from '../platform/index.ts';
import {
  depthFor,
  FIRST_EPOCH,
  isHeldFrom,
  isLocked,
  LEASE,
  type LeaseKey,
  leaseName,
} from './lease-file.ts';
import type { LockDirectory } from './lock-directory.ts';
import { encodeRecord, type RecordContents } from './record.ts';

const MAX_REPLACEMENTS = 16;

/** A file that this process has locked. */
interface Part {
  name: string;
  descriptor: number;
}

/**
 * A lease of one GPU, held by this process until it is released or the process ends, however that comes about.
 *
 * That of a MIG instance holds, besides its own file, a part of its GPU's: a read lock on the byte that is the GPU's lease. So
 * the GPU as a whole and its instances exclude each other, whatever MIG is switched to meanwhile; its instances don't. Inside
 * a job there is nothing to exclude: the job has the part already.
 */
export class Lease {
  readonly uuid: string;
  readonly directory: LockDirectory;
  readonly record: RecordContents;
  readonly #own: Part;
  readonly #parent: Part | null;

  private constructor(
    directory: LockDirectory,
    uuid: string,
    record: RecordContents,
    [own, parent]: [Part, Part | null],
  ) {
    this.directory = directory;
    this.uuid = uuid;
    this.record = record;
    this.#own = own;
    this.#parent = parent;
  }

  /**
   * Takes the lease of a GPU, or returns null where it is held.
   * @throws ERR_LOCK_DIRECTORY
   */
  static tryTake(directory: LockDirectory, key: LeaseKey, holder: RecordContents): Lease | null {
    const { uuid, parent = null, job = null } = key;
    const depth = depthFor(directory, key);
    if (depth === null) return null;
    const own = lockFile(directory, leaseName(uuid, depth), holder, EXCLUSIVE);
    if (own === null) return null;
    let lease: Lease | null = null;
    let part: Part | null = null;
    try {
      // A claim inside a job that ends, and the next claim of its GPU, each lock first and then look at the other's level.
      if (isHeldFrom(directory, uuid, depth + 1) || depthFor(directory, key) !== depth) return null;
      if (parent !== null && job === null) {
        part = lockFile(directory, leaseName(parent), holder, SHARED);
        if (part === null || isHeldFrom(directory, parent, 1)) return null;
      }
      lease = new Lease(directory, uuid, holder, [own, part]);
      lease.#write({ ...holder, ended: null });
      return lease;
    } finally {
      if (lease === null) {
        closeSync(own.descriptor);
        if (part !== null) closeSync(part.descriptor);
      }
    }
  }

  get descriptor(): number {
    return this.#own.descriptor;
  }

  /** The names under which others look for the files: its own, and that of its GPU for a MIG instance. */
  get paths(): { own: string; parent: string | null } {
    const pathOf = ({ name }: Part) => pathIn(this.directory.path, name);
    return { own: pathOf(this.#own), parent: this.#parent === null ? null : pathOf(this.#parent) };
  }

  /** The file of a MIG instance's GPU, in which others may hold a part as well. Nothing is written there. */
  get parentDescriptor(): number | null {
    return this.#parent?.descriptor ?? null;
  }

  /** Whether the files are still where others look for them. If they aren't, this lease protects nothing any longer. */
  isIntact(): boolean {
    return [this.#own, this.#parent].every(
      (part) => part === null || this.directory.isNamed(part.descriptor, part.name),
    );
  }

  /** Notes the end and lets go. */
  release(): void {
    this.noteEnd();
    this.abandon();
  }

  /** Writes down that this epoch ends now, so that what shows on the GPU later is not taken for its remains. */
  noteEnd(): void {
    this.#write({ ...this.record, ended: Math.round(bootMilliseconds()) });
  }

  /** Lets go of this process's hold only: a process that has inherited the descriptor keeps the lease. */
  abandon(): void {
    closeSync(this.#own.descriptor);
    if (this.#parent !== null) closeSync(this.#parent.descriptor);
  }

  /** The block was reserved when the file was made; should writing fail, people see an older record, and that is all. */
  #write(record: object): void {
    native().fileWriteBlock(this.#own.descriptor, encodeRecord(record));
  }
}

/**
 * Opens and locks a lease file; null where a lock that excludes it is held.
 * @param mode EXCLUSIVE: the lease; SHARED: a part of it, as those who hold MIG instances do
 * @throws ERR_LOCK_DIRECTORY
 */
function lockFile(
  directory: LockDirectory,
  name: string,
  { generation: epoch }: RecordContents,
  mode: number,
): Part | null {
  for (let i = 0; i < MAX_REPLACEMENTS; i++) {
    const descriptor = directory.openFile(name);
    let taken = false;
    try {
      if (!lock(descriptor, LEASE, mode)) return null;
      if (!directory.isNamed(descriptor, name)) continue; // the file was replaced: this lock would protect nothing
      if (heldElsewhere(directory, name, mode)) return null;
      // Only another program can have locked a byte with a number by chance: one who could pass for the holder's job, were the
      // holder's own epoch not in the file. For its next instance, this claim may have another epoch of the same GPU's file.
      const hasEpoch = lock(descriptor, FIRST_EPOCH + epoch, EXCLUSIVE);
      if (!hasEpoch && mode === EXCLUSIVE) throw lockedByOtherProgram(directory, name);
      // systemd's cleaner of temporary files leaves alone what is locked in this way, and only that.
      native().lockTry(descriptor, FLOCK, SHARED, 0, 0);
      taken = true;
      return { name, descriptor };
    } finally {
      if (!taken) closeSync(descriptor);
    }
  }
  throw new GPUOwnerError(
    'ERR_LOCK_DIRECTORY',
    `the lease file ${name} in ${directory.path} keeps being removed. Exclude this directory from programs that clean up files.`,
  );
}

function lock(descriptor: number, byte: number, mode: number): boolean {
  const error = native().lockTry(descriptor, OFD, mode, byte, 1);
  if (error === 0) return true;
  if (error === errno.EAGAIN) return false;
  throw new GPUOwnerError(
    'ERR_LOCK_DIRECTORY',
    `the kernel refuses locks in the lock directory: ${systemError(error)}. The file system may not support them.`,
  );
}

function lockedByOtherProgram(directory: LockDirectory, name: string): GPUOwnerError {
  const path = pathIn(directory.path, name);
  return new GPUOwnerError(
    'ERR_LOCK_DIRECTORY',
    `a program that is not gpu-owner has locked the lease file ${path}. As root, \`fuser -v ${path}\` names it; end it.`,
  );
}

/** Two claimants in two places each look at the other place after locking their own, so at least one of them sees the other. */
function heldElsewhere(directory: LockDirectory, name: string, mode: number): boolean {
  for (const descriptor of directory.filesNamed(name, directory.others)) {
    if (isLocked(descriptor, mode)) return true;
  }
  return false;
}
