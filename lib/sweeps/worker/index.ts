export { refuseTooFew, Worker, type WorkerEnd, type WorkerEvent } from './worker.ts';
