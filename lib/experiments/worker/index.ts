export type { WorkerEnd, WorkerEvent } from './worker.ts';
export { Failures } from './circuit-breaker.ts';
export { Worker } from './worker.ts';
