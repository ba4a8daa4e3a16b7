import { closeSync } from 'node:fs';
import { GPUOwnerError } from '../../errors.ts';
import { EXCLUSIVE, native, OFD } from '../../native.ts';
import {
  describeOwner,
  locking,
  now,
  ownersOf,
  pathIn,
  readBlock,
  schema,
  warn,
  warnOnce,
} from '../../platform/index.ts';
import type { ClaimSteps } from './effects.ts';
import type { LockDirectory } from './lock-directory.ts';
import {
  decodeRecord,
  encodeRecord,
  leaseInfo,
  MAX_EPOCHS,
  RECORD_SIZE,
  type RecordContents,
} from './record.ts';

const NAME = 'acquisition.lock';
/** The byte that is the lock. Another one, this and the epoch of the holder's lease, shows that the record is the holder's. */
const LOCK = 0;
const FIRST_RECORD = 2 ** 31;
const MAX_TRIES = 16;

/**
 * The lock under which one claimant at a time decides. The lock makes claims fair and whole; leases alone exclude. So a claim
 * goes on without the lock where its holder keeps it for too long, as it is suspended.
 */
export class AcquisitionLock {
  readonly #descriptor: number | null;

  private constructor(descriptor: number | null) {
    this.#descriptor = descriptor;
  }

  /**
   * Takes the lock, or goes on without it.
   * @param timeout how long to wait for one holder, in ms; for several at most twice as long
   */
  static *take(
    directory: LockDirectory,
    timeout: number,
    record: RecordContents,
  ): ClaimSteps<AcquisitionLock> {
    for (let tries = 0; tries < MAX_TRIES; tries++) {
      const descriptor = openOrWarn(directory);
      if (descriptor === null) break;
      let keep = false;
      try {
        if (!(yield* lock(descriptor, pathIn(directory.path, NAME), timeout))) break;
        if (!directory.isNamed(descriptor, NAME)) continue; // removed and created again: locks of others would not meet this one
        native().fileWriteBlock(descriptor, encodeRecord(record)); // may fail
        native().lockTry(descriptor, OFD, EXCLUSIVE, FIRST_RECORD + record.generation, 1);
        keep = true;
        return new AcquisitionLock(descriptor);
      } finally {
        if (!keep) closeSync(descriptor);
      }
    }
    return new AcquisitionLock(null);
  }

  release(): void {
    if (this.#descriptor !== null) closeSync(this.#descriptor);
  }
}

/** Opens the lock's file. Without the lock claims are less fair, but as safe: a damaged file must not stop all claims. */
function openOrWarn(directory: LockDirectory): number | null {
  try {
    return directory.openFile(NAME);
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    warnOnce(`${error.message} This claim proceeds without it.`);
    return null;
  }
}

/** Waits for the lock. Holders that take turns write other records. @returns false: one had it for too long */
function* lock(descriptor: number, path: string, timeout: number): ClaimSteps<boolean> {
  const end = now() + 2 * timeout;
  for (let holder = readBlock(descriptor, RECORD_SIZE); ; ) {
    if (yield* locking(descriptor, EXCLUSIVE, LOCK, Math.max(0, Math.min(timeout, end - now())))) return true;
    const present = readBlock(descriptor, RECORD_SIZE);
    const isSame = present.equals(holder);
    if (isSame) warnOfHolder(path, descriptor, present, timeout);
    if (isSame || now() >= end) return false;
    holder = present;
  }
}

/** The holder's record; null: it has written none, and what stands there is of an earlier one. */
function holderIn(descriptor: number, block: Buffer): Record<string, unknown> | null {
  const record = decodeRecord(block);
  const leaseEpoch = schema.readAs(schema.whole(MAX_EPOCHS), record?.generation);
  if (leaseEpoch === null) return null;
  const byte = FIRST_RECORD + leaseEpoch;
  return native().lockProbe(descriptor, OFD, EXCLUSIVE, byte, 1) === byte ? record : null;
}

function warnOfHolder(path: string, descriptor: number, block: Buffer, timeout: number): void {
  const seconds = timeout / 1000;
  const record = holderIn(descriptor, block);
  if (record !== null) {
    const { user, pid, command, since } = leaseInfo(record);
    warn(
      `another claim (${user}, pid ${pid ?? 'unknown'}, since ${since ?? 'unknown'}: ${command ?? 'unknown'}) has held the decision lock for ${seconds} s; this claim proceeds without that lock.`,
    );
    return;
  }
  const [owner] = ownersOf(descriptor, LOCK);
  const [who, how] =
    owner === undefined
      ? ['a program that is not visible here', `As root, \`fuser -v ${path}\` shows it.`]
      : [describeOwner(owner), `End it with \`kill ${owner.pid}\`.`];
  warn(
    `${who}, which ${owner?.isClaim ? "hasn't written its record" : 'is not a gpu-owner claim'}, has locked ${path} for ${seconds} s; this claim proceeds without that lock. ${how}`,
  );
}
