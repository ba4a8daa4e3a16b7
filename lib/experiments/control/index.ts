export {
  cancelTasks,
  checkPrograms,
  type Experiment,
  type ExperimentLocation,
  giveUpTasks,
  joinExperiment,
  RETRIED_STATES,
  type Reporter,
  type RunEnd,
  type RunView,
  resolveTask,
  retryTasks,
  type WorkerLine,
  withExperiment,
  withQueue,
} from './experiment.ts';
export type { HostRequest } from './host-workers.ts';
export { ManagerController } from './manager-controller.ts';
export { RunController } from './run-controller.ts';
export { TaskLogs } from './task-logs.ts';
export { describeStops, runWorkers, settingsFor, type WorkerRequest } from './worker-pool.ts';
export { runWorkersOfManager } from './workers-of-manager.ts';
