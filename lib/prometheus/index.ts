export { CONTENT_TYPE, exposition, type Family, type MetricSample, writeTextFile } from './exposition.ts';
export { freshExposition, type MetricsServer, serveMetrics } from './metrics-server.ts';
