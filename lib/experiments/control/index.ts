export {
  type ExperimentPlace,
  openWorkplace,
  type Reporter,
  type RunEnd,
  type RunView,
  resolveTasks,
  ShutdownSignals,
  type WorkerLine,
  withExperiment,
  withQueue,
} from './experiment.ts';
export { ManagerController, type ProtocolSettings } from './manager-controller.ts';
export { RunController } from './run-controller.ts';
export { TaskLogs } from './task-logs.ts';
export { describeStops, runWorkers, type WorkerSettings } from './worker-pool.ts';
