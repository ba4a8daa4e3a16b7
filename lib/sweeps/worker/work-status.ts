import { sleep } from '../../platform/index.ts';
import { QueueRemovedError, type WorkerQueue } from '../queue/index.ts';

/** Whether there is work for a worker that has no task. */
export type WorkState =
  /** No task is left or can come back. */
  | { state: 'done' }
  /** A task can be had now. */
  | { state: 'work' }
  /** There may be one later; look again after `maxWait` ms at the latest. */
  | { state: 'wait'; why: 'paused' | 'delayed' | 'active'; maxWait: number };

/** The limit for changes that the queue doesn't notify. */
const RECHECK_MS = 5_000;
const MIN_WAIT_MS = 10;

/** How long workers wait for the manager of a search. */
const MANAGER_RESTART_TIMEOUT_MS = 60_000;

/** Tells a worker whether there is work, and when to look again. */
export class WorkStatus {
  readonly #queue: WorkerQueue;
  /** The queue's change count before the last look. */
  #seen: number | undefined;
  /** When a search was first found without a manager; null: it has one. */
  #withoutManager: number | null = null;

  constructor(queue: WorkerQueue) {
    this.#queue = queue;
  }

  async readState(): Promise<WorkState> {
    this.#seen = this.#queue.changeCount;
    const { pending, active } = await this.#queue.counts();
    if (pending === 0) {
      if (active > 0 && (await this.#someAreLost())) return { state: 'work' };
      return active === 0 && !(await this.#moreTrialsCome())
        ? { state: 'done' }
        : { state: 'wait', why: 'active', maxWait: RECHECK_MS };
    }
    if ((await this.#queue.paused()) !== null) return { state: 'wait', why: 'paused', maxWait: RECHECK_MS };
    const time = await this.#queue.nextTime();
    const delay = time === null ? 0 : time - Date.now();
    if (delay <= 0) return { state: 'work' };
    return { state: 'wait', why: 'delayed', maxWait: Math.min(delay, RECHECK_MS) };
  }

  /** Whether a search makes more tasks. If its manager is gone, another may be started. */
  async #moreTrialsCome(): Promise<boolean> {
    const search = await this.#queue.search();
    if (search === null || search.isOver) return false;
    if ((await this.#queue.manager()) !== null) {
      this.#withoutManager = null;
      return true;
    }
    this.#withoutManager ??= performance.now();
    return performance.now() - this.#withoutManager < MANAGER_RESTART_TIMEOUT_MS;
  }

  /** Whether lost attempts haven't been ended yet: taking a task ends them, and so frees their tasks. */
  async #someAreLost(): Promise<boolean> {
    if ((await this.#queue.paused()) !== null) return false;
    const living = await this.#queue.attempts('living');
    // Counted last: attempts that have ended in between aren't lost.
    return living.length < (await this.#queue.counts()).active;
  }

  /** Resolves when something has changed since the last look, or after a timeout in ms. @throws once the signal aborts */
  async change(milliseconds: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    await this.#queue.changed(Math.max(milliseconds, MIN_WAIT_MS), signal, this.#seen);
    signal.throwIfAborted();
  }

  /**
   * Resolves with true when nothing is left to do or the queue was removed: then no GPUs are needed. Resolves with false once the signal
   * aborts. Never rejects.
   */
  async untilNeedless(signal: AbortSignal): Promise<boolean> {
    while (!signal.aborted) {
      try {
        await this.#queue.changed(RECHECK_MS, signal, this.#seen);
        if (!signal.aborted && (await this.readState()).state === 'done') return true;
      } catch (error) {
        if (error instanceof QueueRemovedError) return true;
        // Other errors are reported by operations that need the queue now.
        await sleep(signal.aborted ? 0 : RECHECK_MS / 10);
      }
    }
    return false;
  }
}
