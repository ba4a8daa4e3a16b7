export type { Family } from './exposition.ts';
export { queueFamilies } from './queue-metrics.ts';
export { type MetricsServer, serveMetrics } from './server.ts';
export { Tally } from './tally.ts';
