export { CONTENT_TYPE, exposition, type Family, type Sample } from './exposition.ts';
export { freshExposition, type MetricsServer, serveMetrics } from './server.ts';
export { writeTextFile } from './text-file.ts';
