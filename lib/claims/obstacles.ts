// The obstacles of a claimant that waits.
import { closeSync } from 'node:fs';
import type { NotFound } from './discovery.ts';
import { leaseKey } from './evaluate.ts';
import { type EpochLock, findEpochLock, findEpochLocks } from './lease-end.ts';

/** The ends of so many leases are waited for, each by a thread. */
const MAX_LOCKS = 64;

/** The obstacles of a claimant that isn't behind others. */
interface InTheWay {
  /** Leases whose ends are told. The caller closes the descriptors. */
  epochLocks: EpochLock[];
  /** Slots of those who could use a part of what is free. */
  ahead: number[];
  /** GPUs are used without a lease, silent, or suspect. */
  isPolled: boolean;
  /** The end of each lease is told. */
  isComplete: boolean;
}

export function whatIsInTheWay({ candidates, directory, job, gpuRequest }: NotFound): InTheWay {
  const own = candidates.find(({ verdict }) => verdict.ownLeases !== undefined)?.verdict.ownLeases;
  // Only the end of a lease of one's own helps.
  if (own !== undefined && directory !== null) {
    const found = own.map((uuid) => findEpochLock(directory, { uuid }));
    const epochLocks = found.filter((each) => each !== null);
    return { epochLocks, ahead: [], isPolled: false, isComplete: epochLocks.length === found.length };
  }
  const epochLocks: EpochLock[] = [];
  const ahead = new Set<number>();
  let isPolled = false;
  // Others took the GPUs first, so there is nothing to wait for.
  let isComplete = candidates.filter(({ verdict }) => verdict.state === 'free').length < gpuRequest.count;
  for (const { gpu, verdict } of candidates) {
    if (verdict.state === 'busy' && verdict.bookedUntil === undefined) isPolled = true;
    if (verdict.silent || verdict.retryAt !== undefined) isPolled = true;
    if (verdict.keptFor !== undefined) {
      ahead.add(verdict.keptFor);
      continue;
    }
    // The end of the booking is waited for, not that of a lease.
    if (verdict.state !== 'leased' || verdict.bookedUntil !== undefined) continue;
    const found = directory === null ? null : findEpochLocks(directory, leaseKey(gpu, job?.epoch ?? null));
    if (found === null) isComplete = false;
    else epochLocks.push(...found);
    if (epochLocks.length > MAX_LOCKS) {
      for (const { descriptor } of epochLocks.splice(MAX_LOCKS)) closeSync(descriptor);
      isComplete = false;
    }
  }
  return { epochLocks, ahead: [...ahead], isPolled, isComplete };
}
