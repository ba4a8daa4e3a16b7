export { type ContainerSigns, hasPidNamespace, isWSL, mountPointOf, whichContainer } from './containers.ts';
export { checkDevices, matchesName, selects } from './devices.ts';
export { interrupted, isMissing, librarySetting, openDriver, triedLibraries } from './driver.ts';
export {
  cudaOrder,
  hasBusOrder,
  inheritedClaim,
  inheritedDevices,
  rememberInherited,
} from './inherited-devices.ts';
export { byPlace, isDivided, isInstance, label, SHOWS_ONE_INSTANCE, separateKinds } from './instances.ts';
export { type JudgeContext, judge } from './judge.ts';
export { describeListedProcess } from './listed-processes.ts';
export { isMPSServer } from './mps.ts';
export { isPossible, mayBecomeFree, select } from './selection.ts';
export { type Asked, look, lookSync } from './snapshot.ts';
export type { GPU, GPUProcess, LeaseInfo, MIGInstance, Verdict } from './types.ts';
export { formatVisibleDevices } from './visible-devices.ts';
