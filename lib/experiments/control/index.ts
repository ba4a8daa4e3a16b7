export type { Reporter, RunEnd, RunView } from './controller.ts';
export {
  type ExperimentPlace,
  openWorkplace,
  resolveTasks,
  withExperiment,
  withQueue,
} from './experiment.ts';
export { ManagerController, type ProtocolSettings } from './manager-controller.ts';
export { RunController } from './run-controller.ts';
export { ShutdownSignals } from './shutdown-signals.ts';
export { TaskLogs } from './task-logs.ts';
export { describeStops, runWorkers, type WorkerLine, type WorkerSettings } from './worker-pool.ts';
