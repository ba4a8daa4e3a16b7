export type { Family } from '../../prometheus/index.ts';
export { MetricsCollector, openMetrics, queueFamilies } from './collector.ts';
