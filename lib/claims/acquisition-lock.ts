import { closeSync, readSync } from 'node:fs';
import { GPUOwnerError } from '../errors.ts';
import { EXCLUSIVE, FLOCK, native } from '../native.ts';
import { warn, warnOnce } from '../warnings.ts';
import { type Effectful, flocking } from './effects.ts';
import type { LockDirectory } from './lock-directory.ts';
import { decodeRecord, encodeRecord, leaseInfo, RECORD_SIZE, type RecordContents } from './record.ts';

const NAME = 'acquisition.lock';
const MOST_REPLACEMENTS = 16;

/** The lock under which one claimant at a time decides. It makes claims fair and whole; leases alone exclude. */
export class AcquisitionLock {
  /** Whether others may have decided since this claim asked for the lock. */
  readonly waited: boolean;
  readonly #descriptor: number | null;

  private constructor(descriptor: number | null, waited: boolean) {
    this.#descriptor = descriptor;
    this.waited = waited;
  }

  /**
   * Takes the lock, or goes on without it: a holder that is stopped must not wedge the machine.
   * @param milliseconds how long to wait for others
   */
  static *take(
    directory: LockDirectory,
    milliseconds: number,
    record: RecordContents,
  ): Effectful<AcquisitionLock> {
    for (let i = 0; i < MOST_REPLACEMENTS; i++) {
      const descriptor = openOrWarn(directory);
      if (descriptor === null) break;
      let keep = false;
      try {
        // Only who has to wait wants to know for whom.
        const free = native().lockTry(descriptor, FLOCK, EXCLUSIVE, 0, 0) === 0;
        const before = free ? null : holder(descriptor);
        if (!free && !(yield* flocking(descriptor, milliseconds))) {
          const after = holder(descriptor);
          // Many quick ones in turn are no reason for alarm; one that doesn't move is.
          if (before !== null && before === after) {
            warn(
              `${before} has been deciding for ${milliseconds / 1000} s; going on without waiting for it.`,
            );
          }
          return new AcquisitionLock(null, true);
        }
        if (!directory.isNamed(descriptor, NAME)) continue; // removed and made anew meanwhile: locks would not meet
        native().fileWriteBlock(descriptor, encodeRecord(record)); // for people; it may fail
        keep = true;
        return new AcquisitionLock(descriptor, !free);
      } finally {
        if (!keep) closeSync(descriptor);
      }
    }
    return new AcquisitionLock(null, true);
  }

  release(): void {
    if (this.#descriptor !== null) closeSync(this.#descriptor);
  }
}

/** Without the lock claims are less fair, but as safe: a file that somebody has spoilt must not stop all claims. */
function openOrWarn(directory: LockDirectory): number | null {
  try {
    return directory.openFile(NAME);
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    warnOnce(`${error.message} Going on without it.`);
    return null;
  }
}

function holder(descriptor: number): string | null {
  const block = Buffer.alloc(RECORD_SIZE);
  readSync(descriptor, block, 0, RECORD_SIZE, 0);
  const record = decodeRecord(block);
  if (record === null) return null;
  const { user, pid, command, since } = leaseInfo(record);
  return `another claim (${user}, pid ${pid ?? 'unknown'}, since ${since ?? 'unknown'}: ${command ?? 'unknown'})`;
}
