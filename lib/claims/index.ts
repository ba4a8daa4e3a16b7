export { EPOCHS, findUnexplainedDecision } from './acquisition-lock.ts';
export { type Claim, claim, releaseClaim } from './claim.ts';
export { listReasons, refuseImpossible } from './claim-errors.ts';
export { findConflictingProcesses, unexpectedProcesses } from './conflicting-processes.ts';
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
export { awaitDriverStartup } from './driver-startup.ts';
export { runAsync, runSync, takeSnapshot } from './effects.ts';
export { scopeOf } from './evaluate.ts';
export { findOverwrittenMarks } from './interop-context.ts';
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
export { decodeRecord, leaseInfo, MAX_GENERATIONS, RECORD_SIZE } from './record.ts';
export { gpuJSON } from './status-json.ts';
export { reached } from './trace-points.ts';
export { claimAtOnce, claimWhenFree, findWhenFree, type WaitOptions } from './wait.ts';
export { activeWaiters, readWaiters, WAIT_QUEUE_FILE, WaitQueue } from './wait-queue.ts';
