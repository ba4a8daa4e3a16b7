export { type ContainerSigns, hasPidNamespace, isWSL, mountPointOf, whichContainer } from './containers.ts';
export { interrupted, isMissing, librarySetting, openDriver, triedLibraries } from './driver.ts';
export { type JudgeContext, judge } from './judge.ts';
export { describeListedProcess, isMPSServer } from './listed-processes.ts';
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
export { type Asked, look, lookSync } from './snapshot.ts';
export type { GPU, GPUProcess, LeaseInfo, MIGInstance, Verdict } from './types.ts';
export {
  applyEnvironment,
  cudaOrder,
  formatVisibleDevices,
  hasBusOrder,
  inheritedClaim,
  inheritedDevices,
  restoreEnvironment,
  type ShownGPUs,
} from './visible-devices.ts';
