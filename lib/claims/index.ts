export { DECISION_EPOCHS } from './acquisition-lock.ts';
export { type ActiveClaim, claimForCommands } from './active-claim.ts';
export { type Activity, readActivity, type WaitingRequest } from './activity.ts';
export { bookGPUs, cancelBooking } from './book.ts';
export {
  describeBooking,
  MAX_NOTE_LENGTH,
  readBookingFiles,
  readBookings,
  type StoredBooking,
} from './bookings.ts';
export type { Claim } from './claim.ts';
export {
  type DiscoveryOptions,
  discover,
  findFreeGPUs,
  findFreeGPUsSync,
  getGPUs,
  getGPUsSync,
  gpuJSON,
  observeGPUs,
} from './discovery.ts';
export type { GPUStatus } from './find.ts';
export type { Idle } from './idle.ts';
export {
  findDamagedQueue,
  findRecordedLocks,
  findUnexplainedLocks,
  LeaseFiles,
  protectLeaseFiles,
  type UnexplainedLock,
} from './inspection.ts';
export { whereJobComputes } from './intruders.ts';
export { allowedTime, ownLimit } from './limits.ts';
export { chooseLockDirectory, LockDirectory, mayBeSomebodysOwn, PREFERRED } from './lock-directory.ts';
export { namesCommand } from './lock-directory-errors.ts';
export { type DiscoveryRequest, snapshotAfterStartup } from './machine-evaluation.ts';
export {
  type AcquireOptions,
  type ClaimOptions,
  type ClaimPurpose,
  checkConventions,
  checkDirectory,
  checkOptions,
  type Settings,
} from './options.ts';
export { putFirst } from './own-requests.ts';
export { type Device, GPUOwner } from './owner.ts';
export {
  describeFailure,
  failureIn,
  PLACEHOLDER,
  placeholderError,
  spawnPlaceholder,
  startTimeout,
  tryCUDA,
  tryEach,
} from './placeholder.ts';
export { isPreempted, openPreemptionNotice, PREEMPTION_NOTICE } from './preemption.ts';
export { WAIT_QUEUE_FILE } from './queue-file.ts';
export { getQueue, type Observation, observe, type QueueEntry, type QueueOptions } from './queue-view.ts';
export { queueUp, type WaitingState } from './queued-waiter.ts';
export { leaseInfo, readRecord } from './record.ts';
export { listReasons, refuseImpossible } from './refusal.ts';
export { sharesOf } from './shares.ts';
export type { Slot } from './slot.ts';
export { noteCUDA } from './suspects.ts';
export { ledgerOf, noteEnergy, whyUnread } from './usage.ts';
export { checkPossible, findGPUs, type WaitOptions } from './wait.ts';
export { type HandedOverWait, type IdleWait, WaitHandover } from './wait-handover.ts';
