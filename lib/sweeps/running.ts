// What starts, runs and plans sweeps: most of this room, which those who only look at one don't load.

export {
  checkPrograms,
  joinExperiment,
  runWorkers,
  runWorkersOfManager,
  SweepRun,
  settingsFor,
  TaskLogs,
  withExperiment,
} from './control/index.ts';
export { DEFAULT_ETA, MAX_RETRIES, MIN_ETA, openSweepIfAny, rungsFrom } from './files/index.ts';
export { planExperiment } from './plan/index.ts';
export { Authentication, parseAddresses } from './protocol/index.ts';
export { exportResults } from './tables/index.ts';
