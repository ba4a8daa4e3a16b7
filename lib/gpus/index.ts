export {
  hasPidNamespace,
  isWSL,
  isWSLKernel,
  mountPointOf,
  REAL_SIGNS,
  type SystemSigns,
  whichContainer,
} from './containers.ts';
export {
  cudaVersion,
  interruptedError,
  isMissingLibrary,
  librarySetting,
  openDriver,
  triedLibraries,
} from './driver.ts';
export {
  describeHidden,
  describeShare,
  type JudgeContext,
  judge,
  MAX_UNEXPLAINED_BYTES,
  SHARE_UNIT_BYTES,
} from './judge.ts';
export { computePids, describeListedProcess, isMPSServer, memoryOf } from './listed-processes.ts';
export {
  byPlace,
  checkDevices,
  isDivided,
  isInstance,
  isPossible,
  label,
  matchesName,
  mayBecomeFree,
  SHOWS_ONE_INSTANCE,
  select,
  selects,
  separateKinds,
} from './selection.ts';
export { type Asked, snapshot, snapshotSync } from './snapshot.ts';
export type {
  GPU,
  GPUProcess,
  GPUState,
  LeaseInfo,
  Measured,
  MIGInstance,
  Share,
  Sharing,
  Verdict,
} from './types.ts';
export {
  applyEnvironment,
  cudaOrder,
  formatVisibleDevices,
  inheritedClaim,
  inheritedDevices,
  isBusOrder,
  restoreEnvironment,
  type ShownGPUs,
  type VisibleDevicesVariables,
} from './visible-devices.ts';
