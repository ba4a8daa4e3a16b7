// What starts, runs and plans sweeps: most of this room, which those who only look at one don't load.

export {
  checkPrograms,
  hostRequest,
  joinExperiment,
  notingReporter,
  runWorkers,
  runWorkersOfManager,
  SweepRun,
  settingsFor,
  TaskLogs,
  withExperiment,
} from './control/index.ts';
export { openSweepIfAny, stopRule } from './files/index.ts';
export { planExperiment } from './plan/index.ts';
export { Authentication, parseAddresses } from './protocol/index.ts';
export { exportResults } from './tables/index.ts';
