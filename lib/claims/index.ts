export type { Idle } from '../shapes/index.ts';
export { type ActiveClaim, claimForCommands } from './active-claim.ts';
export { bookGPUs, cancelBooking } from './book.ts';
export { bookedGroup, bookedUser, PERIODS, repeatsOf } from './booking-wish.ts';
export type { Claim } from './claim.ts';
export { evaluateWithReasons, type GPUStatus, type JudgedGPU, statusesOf } from './find.ts';
export { askForEnergy, noteLooks, readIdle } from './idle.ts';
export { findIntruders } from './intruders.ts';
export {
  type ClaimSteps,
  cannotMake,
  chooseLockDirectory,
  formatShare,
  gpuOfShare,
  isLocked,
  LEASE,
  LockDirectory,
  leaseInfo,
  leaseName,
  leaseNames,
  leaseOwners,
  noteCUDA,
  PREFERRED,
  readHolder,
  readRecord,
  runAsync,
  runSync,
  sharesOf,
  topologyOf,
} from './locks/index.ts';
export { type Perspective, snapshotAfterStartup } from './machine-evaluation.ts';
export {
  type AcquireOptions,
  type ClaimOptions,
  type ClaimPurpose,
  checkConventions,
  checkDirectory,
  checkOptions,
  type DiscoveryRequest,
  type Settings,
} from './options.ts';
export { type Device, GPUOwner } from './owner.ts';
export {
  failureIn,
  PLACEHOLDER,
  placeholderError,
  readLineUntil,
  spawnPlaceholder,
  startTimeout,
  tryCUDA,
  tryEach,
} from './placeholder.ts';
export { isPreempted, openPreemptionNotice, PREEMPTION_NOTICE } from './preemption.ts';
export {
  activeWaiters,
  allowedTime,
  describeBooking,
  describeReached,
  type HandedOverWait,
  type Holdings,
  holdingsWhenAsked,
  type IdleWait,
  MAX_NOTE_LENGTH,
  putFirst,
  readBookings,
  readWaiters,
  requestLimits,
  type Slot,
  type StoredBooking,
  WAIT_QUEUE_FILE,
  type Waiter,
  WaitHandover,
  WaitQueue,
  wakeRequest,
  whyNotLonger,
  withoutGPUs,
} from './queue/index.ts';
export { queueUp, type WaitingState } from './queued-waiter.ts';
export { listReasons, refuseImpossible } from './refusal.ts';
export {
  CLASSES,
  latestStarts,
  type RequestClass,
  reservedFor,
  whyHere,
} from './rules/index.ts';
export { ledgerOf, noteEnergy, whyUnread } from './usage.ts';
export { checkPossible, findGPUs, type WaitOptions } from './wait.ts';
export { showKeptSets } from './waiters-ahead.ts';
