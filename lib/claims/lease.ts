import { closeSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import type { LeaseInfo } from '../gpus/types.ts';
import { EXCLUSIVE, errno, FLOCK, native, OFD, SHARED } from '../native.ts';
import { systemError } from '../system-errors.ts';
import { bootId, bootMilliseconds } from './boot.ts';
import type { LockDirectory } from './lock-directory.ts';
import { decodeRecord, encodeRecord, leaseInfo, RECORD_SIZE, type RecordContents } from './record.ts';

// Offsets in a lease file, of locks, not of data. Byte 0 is the lease. Byte 1 + generation is this tenure: whoever wants to
// know when the lease ends waits there, and so never stands in the way of the next claimant.
const LEASE = 0;
const FIRST_TENURE = 1;
const MOST_REPLACEMENTS = 16;

/** Where a dead owner's GPU may still look used, for so long after the lease has ended. */
const REMAINS_MILLISECONDS = 5_000;

/** A lease of one GPU, held by this process until it is released or the process ends, however that comes about. */
export class Lease {
  readonly uuid: string;
  readonly directory: LockDirectory;
  readonly #descriptor: number;
  readonly record: RecordContents;

  private constructor(directory: LockDirectory, uuid: string, descriptor: number, record: RecordContents) {
    this.directory = directory;
    this.uuid = uuid;
    this.#descriptor = descriptor;
    this.record = record;
  }

  /**
   * Takes the lease of a GPU, or returns null where somebody has it.
   * @throws ERR_LOCK_DIRECTORY
   */
  static tryTake(directory: LockDirectory, uuid: string, holder: RecordContents): Lease | null {
    const name = leaseName(uuid);
    for (let i = 0; i < MOST_REPLACEMENTS; i++) {
      const descriptor = directory.openFile(name);
      let lease: Lease | null = null;
      try {
        if (!lock(descriptor, LEASE)) return null;
        if (!directory.isNamed(descriptor, name)) continue; // the file was replaced: this lock would protect nothing
        if (heldElsewhere(directory, name)) return null;
        // Only a stranger can have this byte locked; then nobody can wait for the end of this tenure, which costs a poll.
        lock(descriptor, FIRST_TENURE + holder.generation);
        // systemd's cleaner of temporary files leaves alone what is locked in this way, and only that.
        native().lockTry(descriptor, FLOCK, SHARED, 0, 0);
        lease = new Lease(directory, uuid, descriptor, holder);
        lease.#write({ ...holder, ended: null });
        return lease;
      } finally {
        if (lease === null) closeSync(descriptor);
      }
    }
    throw new GPUOwnerError(
      'ERR_LOCK_DIRECTORY',
      `the lease file of ${uuid} in ${directory.path} is removed again and again. Whatever cleans up there must leave it alone.`,
    );
  }

  get descriptor(): number {
    return this.#descriptor;
  }

  /** Whether the file is still where others look for it. If it isn't, this lease protects nothing any longer. */
  isIntact(): boolean {
    return this.directory.isNamed(this.#descriptor, leaseName(this.uuid));
  }

  /** Notes the end and lets go. */
  release(): void {
    this.noteEnd();
    this.abandon();
  }

  /** Writes down that this tenure ends now, so that what shows on the GPU later is not taken for its remains. */
  noteEnd(): void {
    this.#write({ ...this.record, ended: Math.round(bootMilliseconds()) });
  }

  /** Lets go of this process's hold only: whoever has inherited the descriptor keeps the lease. */
  abandon(): void {
    closeSync(this.#descriptor);
  }

  /** The block was reserved when the file was made; should writing fail, people see an older record, and that is all. */
  #write(record: object): void {
    native().fileWriteBlock(this.#descriptor, encodeRecord(record));
  }
}

/** Who holds the lease of a GPU, in this machine's directory or one that may be in use as well; null: nobody. Takes nothing. */
export function probeLease(directory: LockDirectory, uuid: string): LeaseInfo | null {
  for (const descriptor of directory.filesNamed(leaseName(uuid))) {
    if (isLocked(descriptor)) return leaseInfo(readRecord(descriptor));
  }
  return null;
}

/** Why this process can't take the lease of a GPU, whoever holds it; null: nothing keeps it from that. Takes nothing. */
export function whyUntakable(directory: LockDirectory, uuid: string): GPUOwnerError | null {
  return directory.whyUnusable(leaseName(uuid));
}

/**
 * Whether the GPU was leased until a moment ago, or until its holder was killed: then what still shows on it may be the
 * remains of that holder.
 */
export function mayHaveRemains(directory: LockDirectory, uuid: string): boolean {
  return endsOf(directory, uuid).some((ago) => ago === null || ago < REMAINS_MILLISECONDS);
}

/** Whether the GPU's lease is held by the `gpu-owner run` that this process runs under: it tells its jobs its generation. */
export function isHeldByOwnJob(directory: LockDirectory, uuid: string): boolean {
  const job = process.env.GPU_OWNER_JOB;
  if (!job) return false;
  for (const descriptor of directory.filesNamed(leaseName(uuid))) {
    if (isLocked(descriptor) && String(readRecord(descriptor)?.generation) === job) return true;
  }
  return false;
}

/** Whether this tenure of the GPU's lease still lasts, or may: a record can be read while it is being written. Takes nothing. */
export function isTenureHeld(directory: LockDirectory, uuid: string, generation: number): boolean {
  if (!isLeaseName(uuid) || !Number.isSafeInteger(generation)) return false;
  for (const descriptor of directory.filesNamed(leaseName(uuid))) {
    if (!isLocked(descriptor)) continue;
    const present = readRecord(descriptor)?.generation;
    if (present === generation || typeof present !== 'number') return true;
  }
  return false;
}

/** Whether a tenure of the GPU's lease ended in an orderly way less than so many ms ago. */
export function endedWithin(directory: LockDirectory, uuid: string, milliseconds: number): boolean {
  return endsOf(directory, uuid).some((ago) => ago !== null && ago < milliseconds);
}

/** How many ms ago the last tenures since the machine's start ended; null: nobody has noted an end. */
function endsOf(directory: LockDirectory, uuid: string): (number | null)[] {
  const ends: (number | null)[] = [];
  for (const descriptor of directory.filesNamed(leaseName(uuid))) {
    const record = readRecord(descriptor);
    if (record?.boot !== bootId()) continue;
    ends.push(typeof record.ended === 'number' ? bootMilliseconds() - record.ended : null);
  }
  return ends;
}

/** A descriptor and the byte on which a read lock is granted when the present tenure ends. */
export interface Tenure {
  descriptor: number;
  byte: number;
}

/** What to wait on for the end of a lease; null: there is nothing. The caller closes the descriptor. */
export function findTenure(directory: LockDirectory, uuid: string): Tenure | null {
  for (const path of directory.all) {
    const descriptor = native().fileOpenForProbe(join(path, leaseName(uuid)));
    if (descriptor < 0) continue;
    // The kernel tells which byte is locked: nothing hangs on what the file says.
    const byte = native().lockProbe(descriptor, OFD, SHARED, FIRST_TENURE, 0);
    // More than one is locked: strangers are among them, and which one ends with the lease can't be told.
    const stranger = byte >= FIRST_TENURE && native().lockProbe(descriptor, OFD, SHARED, byte + 1, 0) >= 0;
    if (byte >= FIRST_TENURE && !stranger) return { descriptor, byte };
    closeSync(descriptor);
  }
  return null;
}

function leaseName(uuid: string): string {
  if (!isLeaseName(uuid)) {
    throw new GPUOwnerError(
      'ERR_DRIVER',
      `the driver gives ${JSON.stringify(uuid)} as a UUID, which is none.`,
    );
  }
  return `${uuid}.lease`;
}

function isLeaseName(uuid: string): boolean {
  return /^[A-Za-z0-9-]{1,96}$/.test(uuid);
}

function lock(descriptor: number, byte: number): boolean {
  const error = native().lockTry(descriptor, OFD, EXCLUSIVE, byte, 1);
  if (error === 0) return true;
  if (error === errno.EAGAIN) return false;
  throw new GPUOwnerError(
    'ERR_LOCK_DIRECTORY',
    `the kernel refuses locks in the lock directory: ${systemError(error)}. The file system may not support them.`,
  );
}

function isLocked(descriptor: number): boolean {
  return native().lockProbe(descriptor, OFD, EXCLUSIVE, LEASE, 1) >= 0;
}

/** Two claimants in two places each look at the other place after locking their own, so at least one of them sees the other. */
function heldElsewhere(directory: LockDirectory, name: string): boolean {
  for (const descriptor of directory.filesNamed(name, directory.others)) {
    if (isLocked(descriptor)) return true;
  }
  return false;
}

function readRecord(descriptor: number): Record<string, unknown> | null {
  const block = Buffer.alloc(RECORD_SIZE);
  readSync(descriptor, block, 0, RECORD_SIZE, 0);
  return decodeRecord(block);
}
