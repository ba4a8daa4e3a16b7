export type { Family, MetricsServer } from '../../prometheus/index.ts';
export { MetricsCollector, openMetrics, queueFamilies } from './collector.ts';
