import { targetOf } from '../platform/index.ts';

let known: boolean | undefined;

/**
 * Whether this is Node.js's main thread. That is the process's first thread, unless another program has Node.js in it; only
 * then, and in worker threads, node:worker_threads is asked: it takes milliseconds to load.
 */
export function isMainThread(): boolean {
  known ??= isFirstThread() || process.getBuiltinModule('node:worker_threads').isMainThread;
  return known;
}

function isFirstThread(): boolean {
  return /^(\d+)\/task\/\1$/.test(targetOf('/proc/thread-self') ?? '');
}
