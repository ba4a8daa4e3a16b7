export { EPOCHS, findUnexplainedDecision } from './acquisition-lock.ts';
export { pidNamespace } from './ancestry.ts';
export { bootId, bootMilliseconds } from './boot.ts';
export { type Claim, claim, giveBack } from './claim.ts';
export { claimAtOnce } from './claim-at-once.ts';
export { listed, refuseImpossible } from './claim-errors.ts';
export { findIntruders, strangersOn } from './conflicting-processes.ts';
export {
  type DiscoveryOptions,
  discover,
  findForClaim,
  findFreeGPUs,
  findFreeGPUsSync,
  type GPUStatus,
  getGPUs,
  getGPUsSync,
} from './discovery.ts';
export { firstLook } from './driver-startup.ts';
export { looking, runAsync, runSync } from './effects.ts';
export { hide, type Share, show } from './environment.ts';
export { scopeOf } from './evaluate.ts';
export { findOverwritten } from './interop-context.ts';
export { FIRST_TENURE, isLocked, LEASE, readHolder } from './lease-file.ts';
export { findUnexplained, type UnexplainedLock } from './lease-holders.ts';
export { choose, LockDirectory, mayBeSomebodysOwn, namesCommand, PREFERRED } from './lock-directory.ts';
export {
  type AcquireOptions,
  type ClaimOptions,
  checkConventions,
  checkDirectory,
  checkOptions,
  type Settings,
} from './options.ts';
export { type Device, GPUOwner } from './owner.ts';
export { removeOldJobFiles } from './parent-job.ts';
export { getQueue, type QueueEntry, type QueueOptions } from './queue.ts';
export type { WaitingState } from './queued-waiter.ts';
export { decodeRecord, leaseInfo, MOST_GENERATIONS, RECORD_SIZE } from './record.ts';
export { reached } from './trace-points.ts';
export { claimWhenFree, findWhenFree, type WaitOptions } from './wait.ts';
export { Line, NAME, thatCount, waitersIn } from './wait-queue.ts';
