export {
  cancelTasks,
  checkPrograms,
  describeStops,
  type ExperimentLocation,
  type HostRequest,
  joinExperiment,
  RETRIED_STATES,
  type Reporter,
  type RunEnd,
  type RunView,
  resolveTask,
  retryTasks,
  runWorkers,
  runWorkersOfManager,
  SweepRun,
  settingsFor,
  TaskLogs,
  type WorkerLine,
  type WorkerRequest,
  withExperiment,
  withQueue,
} from './control/index.ts';
export {
  DEFAULT_ETA,
  MAX_RETRIES,
  MIN_ETA,
  openSweepIfAny,
  rungsFrom,
  type SearchMethod,
  type SearchOptions,
  type Sweep,
  type SweepSource,
} from './files/index.ts';
export {
  firstLine,
  formatProgress,
  formatRate,
  isOver,
  type Progress,
  readStatus,
  type Status,
} from './manager/index.ts';
export { type PhasePlan, type Plan, planExperiment } from './plan/index.ts';
export { Authentication, type ProtocolSettings, parseAddresses } from './protocol/index.ts';
export {
  type AttemptInfo,
  isOnServer,
  type Needs,
  QUEUE_URLS,
  withoutPassword,
} from './queue/index.ts';
export { describeTrial } from './search/index.ts';
export { exportResults } from './tables/index.ts';
export { formatValue, strictJSON, type Value, type Values } from './task/index.ts';
export type { WorkerEnd } from './worker/index.ts';
