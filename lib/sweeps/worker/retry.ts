import { type ErrorCode, errorMessage, GPUOwnerError } from '../../errors.ts';
import { sanitize, sleep } from '../../platform/index.ts';
import { MAX_DELAY_MS, QueueRemovedError, type WorkerQueue } from '../queue/index.ts';
import type { Shutdown } from './shutdown.ts';

/** Errors of claims that may be over in a moment: a killed placeholder, a busy driver, a full disk. */
const TRANSIENT: readonly ErrorCode[] = ['ERR_PLACEHOLDER', 'ERR_DRIVER', 'ERR_LOCK_DIRECTORY'];
/** Pauses between claims, in ms: half a minute in all. */
const CLAIM_PAUSES = [500, 1_000, 2_000, 4_000, 8_000, 16_000];

const FIRST_PAUSE_MS = 250;
const MAX_PAUSE_MS = 30_000;
/** How often a worker that is to end at once tries an operation of the queue. */
const MAX_LAST_TRIES = 3;

/**
 * Claims GPUs, and retries what may be over in a moment.
 * @param signal ends the pauses
 * @throws what the claim throws: at once what won't pass, the rest after seven tries
 */
export function retryClaim<T>(
  claim: () => Promise<T>,
  signal: AbortSignal,
  tell: (message: string) => void,
): Promise<T> {
  const started = performance.now();
  const attempt = async () => {
    signal.throwIfAborted();
    return claim();
  };
  return retry(attempt, signal, tell, (error, tries) => {
    if (!(error instanceof GPUOwnerError) || !TRANSIENT.includes(error.code) || signal.aborted) throw error;
    const milliseconds = CLAIM_PAUSES[tries - 1];
    if (milliseconds === undefined) throw claimsFailed(error, tries, performance.now() - started);
    return milliseconds;
  });
}

function claimsFailed(error: GPUOwnerError, tries: number, milliseconds: number): GPUOwnerError {
  const seconds = Math.round(milliseconds / 1000);
  const text = `claiming GPUs failed ${tries} times in ${seconds} s, the last time with: ${error.message}`;
  return new GPUOwnerError(error.code, sanitize(text, 2_000), { gpus: error.gpus, cause: error });
}

/**
 * Retries an operation of the queue for as long as it takes (a full disk): a result that took hours must not be lost.
 * @throws what the operation throws, once the worker is to end at once; QueueRemovedError
 */
export function retryQueue<T>(
  operation: () => Promise<T>,
  shutdown: Shutdown,
  tell: (message: string) => void,
): Promise<T> {
  let lastTries = 0;
  return retry(operation, shutdown.atOnce, tell, (error, tries) => {
    if (shutdown.requested === 'stopped' && ++lastTries === MAX_LAST_TRIES) throw error;
    if (error instanceof QueueRemovedError) throw error;
    return Math.min(FIRST_PAUSE_MS * 2 ** (tries - 1), MAX_PAUSE_MS);
  });
}

/** @param signal ends a pause @param pauseAfter how long to wait after a failure, in ms; throws to give up */
async function retry<T>(
  operation: () => Promise<T>,
  signal: AbortSignal,
  tell: (message: string) => void,
  pauseAfter: (error: unknown, tries: number) => number,
): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await operation();
    } catch (error) {
      const milliseconds = pauseAfter(error, tries);
      tell(`${errorMessage(error)} (trying again in ${milliseconds / 1000} s)`);
      await sleep(milliseconds, signal);
    }
  }
}

/** The first delay before a task that isn't to blame is started again. */
const FIRST_DELAY_MS = 1_000;

const counters = new WeakMap<WorkerQueue, Map<string, number>>();

/** The delay before a task that wasn't to blame is started again, in ms: longer each time, for all workers of this process. */
export function delayOf(queue: WorkerQueue, taskId: string): number {
  const counts = counters.get(queue) ?? new Map<string, number>();
  counters.set(queue, counts);
  const count = counts.get(taskId) ?? 0;
  counts.set(taskId, count + 1);
  return Math.min(FIRST_DELAY_MS * 2 ** count, MAX_DELAY_MS);
}

/** Resets the delays of a task after a run. */
export function forgetDelay(queue: WorkerQueue, taskId: string): void {
  counters.get(queue)?.delete(taskId);
}
