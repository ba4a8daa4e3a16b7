export {
  checkPrograms,
  type Experiment,
  joinExperiment,
  notingReporter,
  type Reporter,
  type RunEnd,
  type RunView,
  withExperiment,
} from './experiment.ts';
export { hostRequest } from './host-workers.ts';
export { SweepRun } from './sweep-run.ts';
export { TaskLogs } from './task-logs.ts';
export { runWorkers, settingsFor, type WorkerRequest } from './worker-pool.ts';
export { runWorkersOfManager } from './workers-of-manager.ts';
