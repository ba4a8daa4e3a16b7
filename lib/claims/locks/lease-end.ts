// The end of a lease: when the last one was, and the locks to wait on for the next.
import { native, OFD, SHARED } from '../../native.ts';
import { bootId, bootMilliseconds } from '../../platform/index.ts';
import {
  FIRST_EPOCH,
  type LeaseKey,
  leaseName,
  levelOf,
  levelOrTop,
  MAX_DEPTH,
  probeWhole,
  readDivision,
} from './lease-file.ts';
import type { LockDirectory } from './lock-directory.ts';
import { readRecord } from './record.ts';
import { FIRST_UNIT } from './share-file.ts';

/** How long a dead owner's GPU may still look used after the end of the lease. */
const REMAINS_MS = 5_000;

/** Descriptors of the files in which the GPU may be leased, to be watched. The caller closes them. */
export function openLeases(directory: LockDirectory, key: LeaseKey): number[] {
  const { uuid, depth } = levelOrTop(directory, key);
  const name = leaseName(uuid, depth);
  return directory.all
    .map((path) => directory.openForProbe(name, path))
    .filter((descriptor) => descriptor >= 0);
}

/**
 * Whether the GPU was leased until a moment ago, or until its holder was killed: then what still shows on it may be the
 * remains of that holder.
 */
export function mayHaveRemains(directory: LockDirectory, key: LeaseKey): boolean {
  return endsOf(directory, key).some((ago) => ago === null || ago < REMAINS_MS);
}

/** Whether an epoch of the lease ended in an orderly way within the last `milliseconds`. */
export function endedWithin(directory: LockDirectory, key: LeaseKey, milliseconds: number): boolean {
  return endsOf(directory, key).some((ago) => ago !== null && ago < milliseconds);
}

/** How many ms ago the last epochs since the machine's start ended; null: no end is noted. */
function endsOf(directory: LockDirectory, key: LeaseKey): (number | null)[] {
  const ends: (number | null)[] = [];
  const { uuid, depth } = levelOrTop(directory, key);
  const name = leaseName(uuid, depth);
  for (const descriptor of directory.filesNamed(name)) {
    const record = readRecord(descriptor);
    if (record?.boot !== bootId()) continue;
    ends.push(typeof record.ended === 'number' ? bootMilliseconds() - record.ended : null);
  }
  return ends;
}

/** A descriptor and the byte on which a read lock is granted when the present epoch ends. */
export interface EpochLock {
  descriptor: number;
  byte: number;
}

/** The lock to wait on for the end of a lease; null: there is none. The caller closes the descriptor. */
export function findEpochLock(directory: LockDirectory, key: LeaseKey): EpochLock | null {
  const { parent = null, job = null } = key;
  const level = levelOf(directory, key);
  const epochLock = level === null ? null : epochLockFrom(directory, level.uuid, level.depth);
  if (epochLock !== null || parent === null || job !== null) return epochLock;
  // Holders of other instances of the GPU have epochs there as well, which are not in the way.
  return probeWhole(directory, parent) === null ? null : epochLockFrom(directory, parent, 0);
}

/** The locks to wait on for the end of a lease, or of the shares of a GPU; null: one of them has none. The caller closes them. */
export function findEpochLocks(directory: LockDirectory, key: LeaseKey): EpochLock[] | null {
  const { shares, taken } = readDivision(directory, key);
  const found =
    taken === 0 ? [findEpochLock(directory, key)] : shares.map(({ id }) => epochLockFrom(directory, id, 0));
  const locks = found.filter((each) => each !== null);
  if (locks.length === found.length && locks.length > 0) return locks;
  for (const { descriptor } of locks) native().fileClose(descriptor);
  return null;
}

function epochLockFrom(directory: LockDirectory, uuid: string, from: number): EpochLock | null {
  for (let depth = from; depth <= MAX_DEPTH; depth++) {
    const name = leaseName(uuid, depth);
    let exists = false;
    for (const path of directory.all) {
      const descriptor = directory.openForProbe(name, path);
      if (descriptor < 0) continue;
      exists = true;
      // The kernel tells which byte is locked: nothing hangs on what the file says.
      const byte = native().lockProbe(descriptor, OFD, SHARED, FIRST_EPOCH, FIRST_UNIT - FIRST_EPOCH);
      // More than one is locked: other programs are among them, and which one ends with the lease can't be told.
      const isAmbiguous =
        byte >= FIRST_EPOCH &&
        native().lockProbe(descriptor, OFD, SHARED, byte + 1, FIRST_UNIT - byte - 1) >= 0;
      if (byte >= FIRST_EPOCH && !isAmbiguous) return { descriptor, byte };
      native().fileClose(descriptor);
    }
    if (!exists) return null;
  }
  return null;
}
