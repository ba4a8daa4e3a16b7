export type { QueueEntry } from '../shapes/index.ts';
export { type Activity, readActivity, type WaitingRequest } from './activity.ts';
export {
  type DiscoveryOptions,
  discover,
  findFreeGPUs,
  findFreeGPUsSync,
  getGPUs,
  getGPUsSync,
  gpuJSON,
  observeGPUs,
} from './discovery.ts';
export { getQueue, type Observation, observe, type QueueOptions, queueWith } from './queue-view.ts';
export { observeTopology } from './topology.ts';
export { makeReport, reportCSV, reportTime } from './usage-report.ts';
