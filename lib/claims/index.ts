export { EPOCHS, findUnexplainedDecision } from './acquisition-lock.ts';
export type { Claim } from './claim.ts';
export {
  type DiscoveryOptions,
  discover,
  findFreeGPUs,
  findFreeGPUsSync,
  type GPUStatus,
  getGPUs,
  getGPUsSync,
  getQueue,
  gpuJSON,
  type QueueEntry,
  type QueueOptions,
} from './discovery.ts';
export { runAsync } from './effects.ts';
export { listReasons, refuseImpossible } from './evaluate.ts';
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
export type { WaitingState } from './queued-waiter.ts';
export { decodeRecord, leaseInfo, MAX_GENERATIONS, RECORD_SIZE } from './record.ts';
export { claimForCommands, ShownClaim } from './shown-claim.ts';
export { awaitDriverStartup } from './survey.ts';
export { findGPUs, type WaitOptions } from './wait.ts';
export { WAIT_QUEUE_FILE, WaitQueue } from './wait-queue.ts';
