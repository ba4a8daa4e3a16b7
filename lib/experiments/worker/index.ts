export type { WorkerEnd, WorkerEvent } from './events.ts';
export { Failures } from './failures.ts';
export { Worker } from './worker.ts';
