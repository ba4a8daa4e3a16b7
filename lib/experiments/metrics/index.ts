export { Collector, queueFamilies } from './collector.ts';
export { type Family, type MetricsServer, serveMetrics } from './server.ts';
