export {
  checkPrograms,
  type Experiment,
  type ExperimentLocation,
  joinExperiment,
  type Reporter,
  type RunEnd,
  type RunView,
  type WorkerLine,
  withExperiment,
  withQueue,
} from './experiment.ts';
export type { HostRequest } from './host-workers.ts';
export { SweepRun } from './sweep-run.ts';
export { cancelTasks, RETRIED_STATES, resolveTask, retryTasks } from './task-changes.ts';
export { TaskLogs } from './task-logs.ts';
export { describeStops, runWorkers, settingsFor, type WorkerRequest } from './worker-pool.ts';
export { runWorkersOfManager } from './workers-of-manager.ts';
