export type { Reporter, RunEnd, RunView, WorkerRequest } from './control/index.ts';
export type { SearchMethod, SearchOptions, Sweep, SweepSource } from './files/index.ts';
export type { PhasePlan, Plan } from './plan/index.ts';
export {
  describeTrial,
  formatProgress,
  formatRate,
  isOver,
  type Progress,
  readStatus,
  type Status,
  statusJSON,
} from './progress/index.ts';
export type { ProtocolSettings } from './protocol/index.ts';
export {
  type AttemptInfo,
  cancelTasks,
  type ExperimentLocation,
  isOnServer,
  QUEUE_URLS,
  RETRIED_STATES,
  resolveTask,
  retryTasks,
  withoutPassword,
  withQueue,
} from './queue/index.ts';
export { formatValue, strictJSON, type Value, type Values } from './task/index.ts';
export type { WorkerEnd } from './worker/index.ts';

/** Loads what starts, runs and plans sweeps. */
export const loadRunning = () => import('./running.ts');
