export { AcquisitionLock } from './acquisition-lock.ts';
export {
  type Awaiting,
  awaiting,
  type ClaimSteps,
  type Effect,
  runAsync,
  runSync,
  takeSnapshot,
  traceStep,
  untilEvent,
} from './effects.ts';
export { Lease, lockedByOtherProgram, type ShareDemand } from './lease.ts';
export {
  type EpochLock,
  endedWithin,
  findEpochLock,
  findEpochLocks,
  mayHaveRemains,
  openLeases,
} from './lease-end.ts';
export {
  FIRST_EPOCH,
  findUnexplained,
  type Holder,
  isEpochHeld,
  isLeased,
  isLocked,
  LEASE,
  type LeaseKey,
  type LockOwners,
  leaseName,
  leaseNames,
  leaseOwners,
  levelOf,
  levelOrTop,
  probeLease,
  probeWhole,
  readHolder,
  UNDIVIDED,
  whyUntakable,
} from './lease-file.ts';
export {
  chooseLockDirectory,
  LOCK_DIRECTORY_MODE,
  LockDirectory,
  PREFERRED,
} from './lock-directory.ts';
export { cannotMake } from './lock-directory-errors.ts';
export {
  findParentJob,
  type JobFile,
  type JobSecret,
  makeJobFile,
  newJobSecret,
  type ParentJob,
  readJobFile,
  removeOldJobFiles,
} from './parent-job.ts';
export {
  decodeRecord,
  encodeRecord,
  leaseInfo,
  MAX_EPOCHS,
  nameGPUs,
  ownRecord,
  RECORD_SIZE,
  type RecordContents,
  readRecord,
} from './record.ts';
export { FIRST_UNIT, gpuOfShare, readSize } from './share-file.ts';
export { demandOf, formatShare, sharesOf, sharingOf } from './shares.ts';
export { leaveOut, noteCUDA, readSuspects, takeInAgain, whyLeftOut } from './suspects.ts';
export { topologyOf } from './topology-file.ts';
