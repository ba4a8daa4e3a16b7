// How many claims there were on this machine since its lock directory was made, for metrics. Anybody can write there: the notes
// inform people, and nothing is decided by them.
import { EXCLUSIVE, native, OFD } from '../../native.ts';
import { schema } from '../../platform/index.ts';
import type { LockDirectory } from './lock-directory.ts';
import { encodeRecord, readRecord } from './record.ts';

export interface ClaimCounts {
  /** GPUs were given. */
  granted: number;
  /** Granted claims that had waited. */
  handedOver: number;
  /** None were given, at once or in time. */
  refused: number;
}

const FILE = 'claims.count';
/** The lock is held for one write. A claim doesn't wait for a process that keeps it: then the claim isn't counted. */
const MAX_TRIES = 100;

/** Counts a claim. Where that can't be done it isn't counted. */
export function countClaim(directory: LockDirectory | null, ...outcomes: (keyof ClaimCounts)[]): void {
  const file = directory?.openIfPossible(FILE) ?? -1;
  if (file < 0) return;
  try {
    for (let tries = 0; native().lockTry(file, OFD, EXCLUSIVE, 0, 1) !== 0; tries++) {
      if (tries === MAX_TRIES) return;
    }
    const counts = readCounts(file);
    for (const outcome of outcomes) counts[outcome]++;
    native().fileWriteBlock(file, encodeRecord(counts));
  } finally {
    native().fileClose(file); // and the lock with it
  }
}

export function claimCounts(directory: LockDirectory): ClaimCounts {
  for (const descriptor of directory.filesNamed(FILE, [directory.path])) return readCounts(descriptor);
  return { granted: 0, handedOver: 0, refused: 0 };
}

const COUNT = schema.or(schema.whole(), 0);
const COUNTS = schema.record({ granted: COUNT, handedOver: COUNT, refused: COUNT });

function readCounts(file: number): ClaimCounts {
  return COUNTS(readRecord(file) ?? {}, '');
}
