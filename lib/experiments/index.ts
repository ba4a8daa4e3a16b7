export {
  describeEvent,
  FileTail,
  failedTasks,
  firstLine,
  formatProgress,
  formatRate,
  isOver,
  Manager,
  type Overview,
  overview,
  Pace,
  timestamp,
} from './manager/index.ts';
export { type Family, type MetricsServer, queueFamilies, serveMetrics, Tally } from './metrics/index.ts';
export {
  asKnown,
  type PhasePlan,
  type Plan,
  type PlannedTask,
  type PlanOptions,
  type PlanState,
  planSweep,
} from './plan/index.ts';
export { openProject, type Project } from './project/index.ts';
export {
  Admission,
  type Endpoint,
  ProtocolService,
  parseEndpoint,
  parseNetworks,
  readToken,
} from './protocol/index.ts';
export {
  type AttemptInfo,
  isRedisURL,
  openQueue,
  type Queue,
  type TaskRow,
  type WithoutResult,
  withoutPassword,
} from './queue/index.ts';
export { type ExportFormat, exportResults, recordedTasks } from './results/index.ts';
export { findSweepFiles, openSweep, type Sweep, type SweepSource } from './sweep/index.ts';
export { show, stringify, type Value, type Values } from './task/index.ts';
export { Worker, type WorkerEnd, type WorkerEvent } from './worker/index.ts';
