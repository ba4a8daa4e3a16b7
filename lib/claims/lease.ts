import { closeSync } from 'node:fs';
import { join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import type { LeaseInfo } from '../gpus/types.ts';
import { EXCLUSIVE, errno, FLOCK, native, OFD, SHARED } from '../native.ts';
import { systemError } from '../system-errors.ts';
import { bootId, bootMilliseconds } from './boot.ts';
import {
  DEEPEST,
  FIRST_TENURE,
  isLocked,
  isTenure,
  LEASE,
  leaseFiles,
  leaseName,
  readRecord,
} from './lease-file.ts';
import type { LockDirectory } from './lock-directory.ts';
import { encodeRecord, leaseInfo, type RecordContents } from './record.ts';

const MOST_REPLACEMENTS = 16;

/** Where a dead owner's GPU may still look used, for so long after the lease has ended. */
const REMAINS_MILLISECONDS = 5_000;

/** A lease of one GPU, held by this process until it is released or the process ends, however that comes about. */
export class Lease {
  readonly uuid: string;
  readonly directory: LockDirectory;
  readonly #name: string;
  readonly #descriptor: number;
  readonly record: RecordContents;

  private constructor(
    directory: LockDirectory,
    uuid: string,
    name: string,
    descriptor: number,
    record: RecordContents,
  ) {
    this.directory = directory;
    this.uuid = uuid;
    this.#name = name;
    this.#descriptor = descriptor;
    this.record = record;
  }

  /**
   * Takes the lease of a GPU, or returns null where somebody has it.
   * @param job the generation of the job within which it is taken, from the GPUs that the job holds
   * @throws ERR_LOCK_DIRECTORY
   */
  static tryTake(
    directory: LockDirectory,
    uuid: string,
    holder: RecordContents,
    job: number | null = null,
  ): Lease | null {
    const depth = depthFor(directory, uuid, job);
    if (depth === null) return null;
    const name = leaseName(uuid, depth);
    for (let i = 0; i < MOST_REPLACEMENTS; i++) {
      const descriptor = directory.openFile(name);
      let lease: Lease | null = null;
      try {
        if (!lock(descriptor, LEASE)) return null;
        if (!directory.isNamed(descriptor, name)) continue; // the file was replaced: this lock would protect nothing
        if (heldElsewhere(directory, name)) return null;
        // Who claims inside a job that ends, and who takes its GPU next, each lock first and then look at the other's level.
        if (isHeldFrom(directory, uuid, depth + 1) || depthFor(directory, uuid, job) !== depth) return null;
        // Only a stranger can have this byte locked; then nobody can wait for the end of this tenure, which costs a poll.
        lock(descriptor, FIRST_TENURE + holder.generation);
        // systemd's cleaner of temporary files leaves alone what is locked in this way, and only that.
        native().lockTry(descriptor, FLOCK, SHARED, 0, 0);
        lease = new Lease(directory, uuid, name, descriptor, holder);
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
    return this.directory.isNamed(this.#descriptor, this.#name);
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

/**
 * Who holds the lease of a GPU, in this machine's directory or one that may be in use as well; null: nobody. Takes nothing.
 * @param job the generation of the job within which the question is asked
 */
export function probeLease(
  directory: LockDirectory,
  uuid: string,
  job: number | null = null,
): LeaseInfo | null {
  const holders: LeaseInfo[] = [];
  for (const { descriptor } of leaseFiles(directory, uuid, depthFor(directory, uuid, job) ?? 0)) {
    if (isLocked(descriptor)) holders.push(leaseInfo(readRecord(descriptor)));
  }
  return holders.reduceRight<LeaseInfo | null>(
    (nested, holder) => (nested === null ? holder : { ...holder, nested }),
    null,
  );
}

/** On which level a tenure of the GPU's lease lasts, and what its holder wrote; null: it doesn't. Takes nothing. */
export function findHeld(
  directory: LockDirectory,
  uuid: string,
  generation: number,
): { depth: number; record: Record<string, unknown> | null } | null {
  for (const { depth, descriptor } of leaseFiles(directory, uuid, 0)) {
    if (isTenure(descriptor, generation)) return { depth, record: readRecord(descriptor) };
  }
  return null;
}

/** As {@link probeLease}, for those who don't care who it is. */
export function isLeased(directory: LockDirectory, uuid: string, job: number | null = null): boolean {
  return isHeldFrom(directory, uuid, depthFor(directory, uuid, job) ?? 0);
}

/** Descriptors of the files in which the GPU may be leased, to be watched. The caller closes them. */
export function openLeases(directory: LockDirectory, uuid: string, job: number | null = null): number[] {
  const name = leaseName(uuid, depthFor(directory, uuid, job) ?? 0);
  return directory.all
    .map((path) => native().fileOpenForProbe(join(path, name)))
    .filter((descriptor) => descriptor >= 0);
}

/** The level on which the GPU is leased within a job, or on the machine; null: the job doesn't hold it. */
export function depthFor(directory: LockDirectory, uuid: string, job: number | null): number | null {
  if (job === null) return 0;
  const held = findHeld(directory, uuid, job);
  return held === null || held.depth === DEEPEST ? null : held.depth + 1;
}

function isHeldFrom(directory: LockDirectory, uuid: string, depth: number): boolean {
  for (const { descriptor } of leaseFiles(directory, uuid, depth)) {
    if (isLocked(descriptor)) return true;
  }
  return false;
}

/** Why this process can't take the lease of a GPU, whoever holds it; null: nothing keeps it from that. Takes nothing. */
export function whyUntakable(
  directory: LockDirectory,
  uuid: string,
  job: number | null = null,
): GPUOwnerError | null {
  return directory.whyUnusable(leaseName(uuid, depthFor(directory, uuid, job) ?? 0));
}

/**
 * Whether the GPU was leased until a moment ago, or until its holder was killed: then what still shows on it may be the
 * remains of that holder.
 */
export function mayHaveRemains(directory: LockDirectory, uuid: string, job: number | null = null): boolean {
  return endsOf(directory, uuid, job).some((ago) => ago === null || ago < REMAINS_MILLISECONDS);
}

/** Whether a tenure of the GPU's lease ended in an orderly way less than so many ms ago. */
export function endedWithin(
  directory: LockDirectory,
  uuid: string,
  milliseconds: number,
  job: number | null = null,
): boolean {
  return endsOf(directory, uuid, job).some((ago) => ago !== null && ago < milliseconds);
}

/** How many ms ago the last tenures since the machine's start ended; null: nobody has noted an end. */
function endsOf(directory: LockDirectory, uuid: string, job: number | null): (number | null)[] {
  const ends: (number | null)[] = [];
  const name = leaseName(uuid, depthFor(directory, uuid, job) ?? 0);
  for (const descriptor of directory.filesNamed(name)) {
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

/**
 * What to wait on for the end of a lease; null: there is nothing. The caller closes the descriptor.
 * @param job the generation of the job within which somebody waits
 */
export function findTenure(directory: LockDirectory, uuid: string, job: number | null = null): Tenure | null {
  const from = depthFor(directory, uuid, job);
  if (from === null) return null;
  for (let depth = from; depth <= DEEPEST; depth++) {
    const name = leaseName(uuid, depth);
    let exists = false;
    for (const path of directory.all) {
      const descriptor = native().fileOpenForProbe(join(path, name));
      if (descriptor < 0) continue;
      exists = true;
      // The kernel tells which byte is locked: nothing hangs on what the file says.
      const byte = native().lockProbe(descriptor, OFD, SHARED, FIRST_TENURE, 0);
      // More than one is locked: strangers are among them, and which one ends with the lease can't be told.
      const stranger = byte >= FIRST_TENURE && native().lockProbe(descriptor, OFD, SHARED, byte + 1, 0) >= 0;
      if (byte >= FIRST_TENURE && !stranger) return { descriptor, byte };
      closeSync(descriptor);
    }
    if (!exists) return null;
  }
  return null;
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

/** Two claimants in two places each look at the other place after locking their own, so at least one of them sees the other. */
function heldElsewhere(directory: LockDirectory, name: string): boolean {
  for (const descriptor of directory.filesNamed(name, directory.others)) {
    if (isLocked(descriptor)) return true;
  }
  return false;
}
