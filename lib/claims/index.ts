export { EPOCHS, findUnexplainedDecision } from './acquisition-lock.ts';
export { type Claim, claim, giveBack } from './claim.ts';
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
  getQueue,
  type QueueEntry,
  type QueueOptions,
} from './discovery.ts';
export { firstLook } from './driver-startup.ts';
export { looking, runAsync, runSync } from './effects.ts';
export { scopeOf } from './evaluate.ts';
export { findOverwritten } from './interop-context.ts';
export {
  FIRST_TENURE,
  findUnexplained,
  isLocked,
  LEASE,
  readHolder,
  type UnexplainedLock,
} from './lease-file.ts';
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
export type { WaitingState } from './queued-waiter.ts';
export { decodeRecord, leaseInfo, MOST_GENERATIONS, RECORD_SIZE } from './record.ts';
export { gpuJSON } from './status-json.ts';
export { reached } from './trace-points.ts';
export { claimAtOnce, claimWhenFree, findWhenFree, type WaitOptions } from './wait.ts';
export { Line, NAME, thatCount, waitersIn } from './wait-queue.ts';
