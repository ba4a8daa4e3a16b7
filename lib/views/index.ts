export { machineFamilies } from './machine-metrics.ts';
