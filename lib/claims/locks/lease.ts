import { closeSync } from 'node:fs';
import { GPUOwnerError } from '../../errors.ts';
import { SHARE_UNIT_BYTES } from '../../gpus/index.ts';
import { EXCLUSIVE, errno, FLOCK, native, OFD, SHARED } from '../../native.ts';
import { bootMilliseconds, pathIn, systemError } from '../../platform/index.ts';
import {
  FIRST_EPOCH,
  hasLeasedInstance,
  isHeldFrom,
  isLocked,
  isNameLocked,
  LEASE,
  type LeaseKey,
  type Level,
  leaseName,
  levelOf,
  lockName,
  readDivision,
} from './lease-file.ts';
import type { LockDirectory } from './lock-directory.ts';
import { encodeRecord, type RecordContents } from './record.ts';
import { isLockedByOtherProgram, lockSize, type ShareParts, shareId, takeShare } from './share-file.ts';

const MAX_REPLACEMENTS = 16;

/** A file that this process has locked, or the lock directory itself. */
interface Part {
  name: string;
  descriptor: number;
  /** The share of what the file stands for that has its units there; null: none. */
  shareNumber: number | null;
}

/** A share to be taken. */
export interface ShareDemand extends ShareParts {
  /** Upper bound on the units of all shares together: programs without a claim use the others. */
  limit: number;
}

/**
 * A lease of one GPU or of a share of it, held by this process until it is released or the process ends, however that comes about.
 *
 * That of a MIG instance holds, besides its own file, a part of its GPU's: a read lock on the byte that is the GPU's lease. So
 * the GPU as a whole and its instances exclude each other, even if MIG is switched meanwhile; its instances don't. Inside
 * a job there is nothing to exclude: the job has the part already. A share holds such a part, too, and in that file its units.
 */
export class Lease {
  readonly uuid: string;
  readonly directory: LockDirectory;
  readonly record: RecordContents;
  /** In place of the UUID in the name of its file: a share has another one. */
  readonly id: string;
  /** The size of a share; null: the GPU as a whole. */
  readonly share: ShareParts | null;
  readonly #own: Part;
  readonly #enclosing: readonly Part[];

  private constructor(
    directory: LockDirectory,
    { uuid }: LeaseKey,
    record: RecordContents,
    { id, own, enclosing }: Locked,
    share: ShareParts | null,
  ) {
    this.directory = directory;
    this.uuid = uuid;
    this.record = record;
    this.id = id;
    this.share = share;
    this.#own = own;
    this.#enclosing = enclosing;
  }

  /**
   * Takes the lease of a GPU, or of a share; null where it is held, or not enough is left.
   * @throws ERR_LOCK_DIRECTORY
   */
  static tryTake(
    directory: LockDirectory,
    key: LeaseKey,
    holder: RecordContents,
    share: ShareDemand | null = null,
  ): Lease | null {
    const parts: Part[] = [];
    let lease: Lease | null = null;
    try {
      const locked = lockAll(directory, key, holder, share, parts);
      if (locked === null) return null;
      lease = new Lease(directory, key, holder, locked, share);
      lease.#write({ ...holder, ended: null });
      return lease;
    } finally {
      if (lease === null) for (const { descriptor } of parts) closeSync(descriptor);
    }
  }

  /** The number of the share, which no other share of the GPU has; null: the GPU as a whole. */
  get shareNumber(): number | null {
    return this.share === null ? null : Number(this.id.slice(this.id.lastIndexOf('-') + 1));
  }

  get shareBytes(): number | null {
    return this.share === null ? null : this.share.units * SHARE_UNIT_BYTES;
  }

  get descriptor(): number {
    return this.#own.descriptor;
  }

  /** The names under which others look for the files: its own, and those of what it is a part of. */
  get paths(): { own: string; enclosing: string[] } {
    const pathOf = ({ name }: Part) => pathIn(this.directory.path, name);
    return { own: pathOf(this.#own), enclosing: this.#enclosing.map(pathOf) };
  }

  /** The files of what it is a part of, in which others may hold a part as well. Nothing is written there. */
  get enclosingDescriptors(): number[] {
    return this.#enclosing.map(({ descriptor }) => descriptor);
  }

  /** Whether the files are still where others look for them. If they aren't, this lease protects nothing any longer. */
  isIntact(): boolean {
    return [this.#own, ...this.#enclosing].every(({ descriptor, name }) =>
      this.directory.isNamed(descriptor, name),
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
    const [name, ...enclosing] = this.#enclosing;
    for (const part of [name, this.#own, ...enclosing]) if (part !== undefined) closeSync(part.descriptor);
  }

  /** The block was reserved when the file was made; should writing fail, people see an older record, and that is all. */
  #write(record: object): void {
    native().fileWriteBlock(this.#own.descriptor, encodeRecord(record));
  }
}

interface Locked {
  id: string;
  own: Part;
  enclosing: readonly Part[];
}

/** Locks the files of a lease; null where one is held. @param parts gets those that are locked, also if others can't be */
function lockAll(
  directory: LockDirectory,
  key: LeaseKey,
  holder: RecordContents,
  share: ShareDemand | null,
  parts: Part[],
): Locked | null {
  const level = levelOf(directory, key);
  if (level === null) return null;
  // Opened first, so that it is closed first where the process ends: those waiting for a lease find the name free.
  const itself = directory.openItself();
  if (itself >= 0) parts.push({ name: '.', descriptor: itself, shareNumber: null });
  const lockPart = (name: string, mode: number, ofIt: ShareDemand | null = null) => {
    const part = lockFile(directory, itself, name, holder, mode, ofIt);
    if (part !== null) parts.push(part);
    return part;
  };
  const { uuid, depth } = level;
  const whole = lockPart(leaseName(uuid, depth), share === null ? EXCLUSIVE : SHARED, share);
  if (whole === null) return null;
  // A claim inside a job that ends, and the next claim of its GPU, each lock first and then look at the other's level.
  if (isHeldFrom(directory, uuid, depth + 1) || !isSameLevel(levelOf(directory, key), level)) return null;
  for (const name of level.enclosing) {
    if (lockPart(name, SHARED) === null) return null;
  }
  const { parent = null, job = null } = key;
  // Instances, and shares of the whole, can only meet if MIG is switched while they are leased.
  if (parent !== null && job === null) {
    if (isHeldFrom(directory, parent, 1) || readDivision(directory, { uuid: parent }).taken > 0) return null;
  }
  const enclosing = parts.filter((part) => part !== whole);
  if (share === null || whole.shareNumber === null) return { id: uuid, own: whole, enclosing };
  if (depth === 0 && hasLeasedInstance(directory, uuid)) return null;
  // Claims without the decision lock each take their units first, and then see those of the others.
  if (readDivision(directory, key).taken > share.limit) return null;
  const id = shareId(uuid, depth, whole.shareNumber);
  const own = lockPart(leaseName(id), EXCLUSIVE);
  if (own === null || isHeldFrom(directory, id, 1)) return null;
  const error = lockSize(own.descriptor, share);
  if (error !== 0) throw lockedByOtherProgram(directory, own.name);
  return { id, own, enclosing: [...enclosing, whole] };
}

function isSameLevel(found: Level | null, { uuid, depth }: Level): boolean {
  return found !== null && found.uuid === uuid && found.depth === depth;
}

/**
 * Opens and locks a lease file; null where a lock that excludes it is held.
 * @param itself a descriptor of the lock directory @param mode EXCLUSIVE: the lease; SHARED: a part of it, as those who hold MIG instances do
 * @param share taken before the lease is locked: the file never looks as if it were leased, but not in shares
 * @throws ERR_LOCK_DIRECTORY
 */
function lockFile(
  directory: LockDirectory,
  itself: number,
  name: string,
  { generation: epoch }: RecordContents,
  mode: number,
  share: ShareDemand | null,
): Part | null {
  for (let i = 0; i < MAX_REPLACEMENTS; i++) {
    const descriptor = directory.openFile(name);
    let taken = false;
    try {
      const shareNumber = share === null ? null : takeShare(descriptor, share);
      if (share !== null && shareNumber === null) {
        if (isLockedByOtherProgram(descriptor)) throw lockedByOtherProgram(directory, name);
        return null;
      }
      if (!lock(descriptor, LEASE, mode)) return null;
      if (!directory.isNamed(descriptor, name)) continue; // the file was replaced: this lock would protect nothing
      if (heldElsewhere(directory, name, mode)) return null;
      if (itself >= 0 && lockName(itself, name, mode)) return null; // another holder's file was removed
      // Only another program can have locked a byte with a number by chance: one who could pass for the holder's job, were the
      // holder's own epoch not in the file. For its next instance, this claim may have another epoch of the same GPU's file.
      const hasEpoch = lock(descriptor, FIRST_EPOCH + epoch, EXCLUSIVE);
      if (!hasEpoch && mode === EXCLUSIVE) throw lockedByOtherProgram(directory, name);
      // systemd's cleaner of temporary files leaves alone what is locked in this way, and only that.
      native().lockTry(descriptor, FLOCK, SHARED, 0, 0);
      taken = true;
      return { name, descriptor, shareNumber };
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

/** Why a lease can't be taken of which another program has locked what no claim does. */
export function lockedByOtherProgram(directory: LockDirectory, name: string): GPUOwnerError {
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
  return isNameLocked(directory, name, mode, directory.others);
}
