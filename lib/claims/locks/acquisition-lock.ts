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
/** At the end of the file's block, as text: the epoch, which is the number of the byte that is the lock. */
const EPOCH_BYTES = 32;
/** The holder's record is in front of it. */
const HOLDER_BYTES = RECORD_SIZE - EPOCH_BYTES;
export const DECISION_EPOCHS = 2 ** 31;
/** How often a waiter looks whether the epoch has changed, in ms. */
const EPOCH_POLL_MS = 100;
const MAX_TRIES = 16;
/** A holder that takes less may be healthy: a claim that waits for a shorter time gives up the lock for itself only. In ms. */
const MIN_SUSPENDED_MS = 500;

/**
 * The lock under which one claimant at a time decides. The lock makes claims fair and whole; leases alone exclude.
 *
 * A holder that is suspended must not wedge the machine: a waiter that has seen the same holder for too long begins the next
 * epoch, for everybody. The holder keeps a byte that isn't used any more.
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
    const end = now() + 2 * timeout;
    let waited = false;
    /** The block while the holder is waited for: others write another record, or have another epoch. null: not read yet. */
    let holder = null as Buffer | null;
    let since = 0;
    for (let tries = 0; tries < MAX_TRIES; ) {
      const descriptor = openOrWarn(directory);
      if (descriptor === null) break;
      let keep = false;
      try {
        const epoch = readEpoch(descriptor);
        if (waited || native().lockTry(descriptor, OFD, EXCLUSIVE, epoch, 1) !== 0) {
          waited = true;
          const posixHolder = native().lockHolder(descriptor, OFD, EXCLUSIVE, epoch, 1);
          if (posixHolder > 0) {
            // A POSIX lock, which no claim takes, may last, and on all bytes: to wait for it would cost every claim the timeout.
            const path = pathIn(directory.path, NAME);
            const [owner] = ownersOf(descriptor, epoch);
            warnOnce(
              `${owner ? describeOwner(owner) : 'a program'}, which is not a gpu-owner claim, has locked ${path}; this claim proceeds without that lock. As root, \`fuser -v ${path}\` shows it.`,
            );
            break;
          }
          const block = readBlock(descriptor, RECORD_SIZE);
          if (holder?.equals(block) !== true) {
            holder = block;
            since = now();
          }
          const remainingMs = Math.min(EPOCH_POLL_MS, since + timeout - now(), end - now());
          if (!(yield* locking(descriptor, EXCLUSIVE, epoch, Math.max(remainingMs, 0)))) {
            if (now() - since >= timeout) {
              tries++;
              if (readBlock(descriptor, RECORD_SIZE).equals(block)) {
                warnOfHolder(pathIn(directory.path, NAME), descriptor, epoch, block, timeout);
                if (timeout < MIN_SUSPENDED_MS || !beginEpochAfter(descriptor, epoch)) break;
              }
            } else if (now() >= end) break;
            continue;
          }
        }
        tries++;
        // Removed and created again, or the epoch has ended: locks of others would not meet this one.
        if (!directory.isNamed(descriptor, NAME) || readEpoch(descriptor) !== epoch) continue;
        native().fileWriteBlock(descriptor, encodeRecord(record).subarray(0, HOLDER_BYTES)); // writing the record may fail
        // Shows that the record is the current holder's, not an earlier one's.
        native().lockTry(descriptor, OFD, EXCLUSIVE, DECISION_EPOCHS + record.generation, 1);
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

/** Anybody may have written it. */
function readEpoch(descriptor: number): number {
  const text = readBlock(descriptor, EPOCH_BYTES, HOLDER_BYTES).toString('latin1');
  const epoch = Number(text.replaceAll('\0', ''));
  return Number.isInteger(epoch) && epoch >= 0 && epoch < DECISION_EPOCHS ? epoch : 0;
}

/** The next byte that isn't held becomes the lock. @returns false: there is none near, or it can't be written down */
function beginEpochAfter(descriptor: number, epoch: number): boolean {
  for (let i = 1; i <= MAX_TRIES; i++) {
    const next = (epoch + i) % DECISION_EPOCHS;
    if (native().lockProbe(descriptor, OFD, EXCLUSIVE, next, 1) >= 0) continue;
    const text = Buffer.from(`\n${next}`.padEnd(EPOCH_BYTES - 1).concat('\n'));
    return native().fileWriteBlock(descriptor, text, HOLDER_BYTES) === 0;
  }
  return false;
}

/** The holder's record; null: it has written none, and what stands there is of an earlier one. */
function holderIn(descriptor: number, block: Buffer): Record<string, unknown> | null {
  const record = decodeRecord(block.subarray(0, HOLDER_BYTES));
  const leaseEpoch = schema.readAs(schema.whole(MAX_EPOCHS), record?.generation);
  if (leaseEpoch === null) return null;
  const byte = DECISION_EPOCHS + leaseEpoch;
  return native().lockProbe(descriptor, OFD, EXCLUSIVE, byte, 1) === byte ? record : null;
}

function warnOfHolder(path: string, descriptor: number, epoch: number, block: Buffer, timeout: number): void {
  const seconds = timeout / 1000;
  const record = holderIn(descriptor, block);
  if (record !== null) {
    const { user, pid, command, since } = leaseInfo(record);
    warn(
      `another claim (${user}, pid ${pid ?? 'unknown'}, since ${since ?? 'unknown'}: ${command ?? 'unknown'}) has held the decision lock for ${seconds} s; this claim proceeds without that lock.`,
    );
    return;
  }
  const [owner] = ownersOf(descriptor, epoch);
  const [who, how] =
    owner === undefined
      ? ['a program that is not visible here', `As root, \`fuser -v ${path}\` shows it.`]
      : [describeOwner(owner), `End it with \`kill ${owner.pid}\`.`];
  warn(
    `${who}, which ${owner?.isClaim ? "hasn't written its record" : 'is not a gpu-owner claim'}, has locked ${path} for ${seconds} s; this claim proceeds without that lock. ${how}`,
  );
}
