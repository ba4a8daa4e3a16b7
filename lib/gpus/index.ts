export {
  hasPidNamespace,
  isWSL,
  mountPointOf,
  whichContainer,
} from './containers.ts';
export { CUDA_HANGS, cudaCode, cudaFailed, explainCudaCode, resetOf } from './cuda-codes.ts';
export {
  cudaVersion,
  interruptedError,
  KEEP_AWAKE,
  librarySetting,
  openDriver,
  readTopology,
} from './driver.ts';
export { describeHidden, judge, MAX_UNEXPLAINED_BYTES } from './judge.ts';
export { describeShare } from './lease-text.ts';
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
  offersChoice,
  SHOWS_ONE_INSTANCE,
  select,
  separateKinds,
} from './selection.ts';
export { type Asked, snapshot, snapshotSync } from './snapshot.ts';
export { type CudaNote, describeSuspect, SUSPECT_MS, type Suspect, suspectsIn } from './suspect.ts';
export {
  connectedSets,
  connectionOf,
  cpusNear,
  isTopologyOf,
  type LinkKind,
  linkLegend,
  linkSign,
  pcieKindOf,
  placeOf,
  type Topology,
  UNKNOWN,
} from './topology.ts';
export {
  type GPU,
  type GPUProcess,
  type GPUState,
  type JudgeContext,
  type LeaseInfo,
  type Measured,
  type MIGInstance,
  SHARE_UNIT_BYTES,
  type Share,
  type Sharing,
  shownState,
  type Verdict,
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
