import { readSync } from 'node:fs';
import { GPUOwnerError } from '../errors.ts';
import { EXCLUSIVE, native, OFD, SHARED } from '../native.ts';
import type { LockDirectory } from './lock-directory.ts';
import { decodeRecord, RECORD_SIZE } from './record.ts';

// Offsets in a lease file, of locks, not of data. Byte 0 is the lease. Byte 1 + generation is this tenure: whoever wants to
// know when the lease ends waits there, and so never stands in the way of the next claimant.
export const LEASE = 0;
export const FIRST_TENURE = 1;

/**
 * How deep claims inside jobs can be nested. Each level has a file of its own per GPU, with the same layout: level 0 is the
 * machine's, level 1 is for claims inside a job that holds level 0, and so on. On no level has a GPU two holders.
 */
export const DEEPEST = 64;

/** @throws ERR_DRIVER for what is no UUID: it becomes a part of a path */
export function leaseName(given: string, depth = 0): string {
  // Drivers before R470 call an instance MIG-GPU-<uuid>/<GPU instance>/<compute instance>.
  const uuid = given.startsWith('MIG-GPU-') ? given.replaceAll('/', '-') : given;
  if (!isLeaseName(uuid)) {
    throw new GPUOwnerError(
      'ERR_DRIVER',
      `the driver gives ${JSON.stringify(given)} as a UUID, which is none.`,
    );
  }
  return depth === 0 ? `${uuid}.lease` : `${uuid}.nested-${depth}`;
}

export function isLeaseName(uuid: string): boolean {
  return /^[A-Za-z0-9-]{1,96}$/.test(uuid);
}

export interface LeaseFile {
  depth: number;
  /** Closed when the caller goes on. */
  descriptor: number;
}

/**
 * The lease files of a GPU from a level on, outermost first. A level without a file has never had a holder, and so none
 * below it had.
 */
export function* leaseFiles(directory: LockDirectory, uuid: string, from: number): Generator<LeaseFile> {
  for (let depth = from; depth <= DEEPEST; depth++) {
    let exists = false;
    for (const descriptor of directory.filesNamed(leaseName(uuid, depth))) {
      exists = true;
      yield { depth, descriptor };
    }
    if (!exists) return;
  }
}

/** Whether a lock of this mode would be refused: EXCLUSIVE by any other lock, SHARED by the lease itself only. Takes nothing. */
export function isLocked(descriptor: number, mode = EXCLUSIVE): boolean {
  return native().lockProbe(descriptor, OFD, mode, LEASE, 1) >= 0;
}

/** Whether this tenure of the lease lasts. Takes nothing. */
export function isTenure(descriptor: number, generation: number): boolean {
  const byte = FIRST_TENURE + generation;
  // A longer lock is a stranger's.
  return native().lockProbe(descriptor, OFD, SHARED, byte, 1) === byte;
}

/**
 * What the present holder has written; null: nothing, and what stands there is of an earlier one. So it is for a moment with each
 * lease, and as long as it lasts where a stranger has the lock, or the file may not be written to.
 */
export function readHolder(descriptor: number): Record<string, unknown> | null {
  const record = readRecord(descriptor);
  const generation = Number(record?.generation);
  return Number.isSafeInteger(generation) && generation >= 0 && isTenure(descriptor, generation)
    ? record
    : null;
}

/** Whether it is also the only one that anybody has: anybody can lock any byte, but nobody can hide that of the lease's holder. */
export function isOnlyTenure(descriptor: number, generation: number): boolean {
  const byte = FIRST_TENURE + generation;
  const isFree = (start: number, length: number) =>
    native().lockProbe(descriptor, OFD, SHARED, start, length) < 0;
  return (
    isTenure(descriptor, generation) &&
    (generation === 0 || isFree(FIRST_TENURE, generation)) &&
    isFree(byte + 1, 0)
  );
}

export function readRecord(descriptor: number): Record<string, unknown> | null {
  const block = Buffer.alloc(RECORD_SIZE);
  readSync(descriptor, block, 0, RECORD_SIZE, 0);
  return decodeRecord(block);
}
