export { EPOCHS, findUnexplainedDecision } from './acquisition-lock.ts';
export { pidNamespace } from './ancestry.ts';
export { bootId, bootMilliseconds } from './boot.ts';
export { scopeOf } from './candidates.ts';
export { type Claim, claim, giveBack } from './claim.ts';
export { claimAtOnce } from './claim-at-once.ts';
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
export { looking, runAsync, runSync } from './effects.ts';
export { removeOldJobFiles } from './enclosing-job.ts';
export { hide, type Share, show } from './environment.ts';
export { firstLook } from './first-look.ts';
export { findOverwritten } from './foreign.ts';
export { findIntruders, strangersOn } from './intruders.ts';
export { FIRST_TENURE, isLocked, LEASE, readHolder } from './lease-file.ts';
export { findUnexplained, type UnexplainedLock } from './lease-holders.ts';
export { Line, NAME, thatCount, waitersIn } from './line.ts';
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
export { getQueue, type QueueEntry, type QueueOptions } from './queue.ts';
export { decodeRecord, leaseInfo, MOST_GENERATIONS, RECORD_SIZE } from './record.ts';
export { listed, refuseImpossible } from './refusals.ts';
export type { WaitingState } from './standing.ts';
export { reached } from './steps.ts';
export { claimWhenFree, findWhenFree, type WaitOptions } from './waiting.ts';
