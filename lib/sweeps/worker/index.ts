export { refuseTooLittle, Worker, type WorkerEnd, type WorkerEvent } from './worker.ts';
