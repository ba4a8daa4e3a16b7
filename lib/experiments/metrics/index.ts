export type { Family } from './server.ts';
export { queueFamilies } from './collector.ts';
export { type MetricsServer, serveMetrics } from './server.ts';
export { Tally } from './collector.ts';
