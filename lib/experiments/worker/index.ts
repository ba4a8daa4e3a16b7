export { WorkerCircuitBreaker } from './circuit-breaker.ts';
export { Worker, type WorkerEnd, type WorkerEvent } from './worker.ts';
