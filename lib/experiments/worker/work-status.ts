import { type Queue, QueueRemovedError } from '../queue/index.ts';

/** How things look for a worker that has no task. */
export type View =
  /** No task is left or can come back. */
  | { state: 'done' }
  /** There is one that can be had now. */
  | { state: 'work' }
  /** There may be one later; `longest` ms from now it is worth looking again at the latest. */
  | { state: 'wait'; why: 'paused' | 'delayed' | 'active'; longest: number };

/** The limit for changes that nobody told of, in ms. */
const LOOK_AGAIN = 5_000;
const SHORTEST = 10;
/** The end of somebody's enqueueing is no change of the queue, in ms. */
const EXPECTING = 500;

export class Outlook {
  readonly #queue: Queue;
  readonly #expecting: () => boolean;
  /** What was known before the last look. */
  #seen: number | undefined;

  constructor(queue: Queue, expecting: () => boolean) {
    this.#queue = queue;
    this.#expecting = expecting;
  }

  async look(): Promise<View> {
    this.#seen = this.#queue.changeCount;
    const expecting = this.#expecting(); // before the look: what comes in between is seen by it
    const { pending, active } = await this.#queue.counts();
    if (pending === 0) {
      if (active > 0 && (await this.#someAreLost())) return { state: 'work' };
      return active === 0 && !expecting
        ? { state: 'done' }
        : { state: 'wait', why: 'active', longest: expecting ? EXPECTING : LOOK_AGAIN };
    }
    if ((await this.#queue.paused()) !== null) return { state: 'wait', why: 'paused', longest: LOOK_AGAIN };
    const time = await this.#queue.nextTime();
    const delay = time === null ? 0 : time - Date.now();
    if (delay <= 0) return { state: 'work' };
    return { state: 'wait', why: 'delayed', longest: Math.min(delay, LOOK_AGAIN) };
  }

  /** Whether attempts are gone that nobody has ended yet: whoever takes a task does, and so gets theirs. */
  async #someAreLost(): Promise<boolean> {
    if ((await this.#queue.paused()) !== null) return false;
    const living = await this.#queue.attempts('living');
    // Counted last: those that have ended in between aren't lost.
    return living.length < (await this.#queue.counts()).active;
  }

  /** Resolves when something has changed since the last look, or after so many ms. @throws once the signal aborts */
  async change(milliseconds: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    await this.#queue.changed(Math.max(milliseconds, SHORTEST), signal, this.#seen);
    signal.throwIfAborted();
  }

  /**
   * Resolves with true when nothing is left to do, or the queue was removed: nobody needs GPUs for that. With false once the signal
   * aborts. Never rejected.
   */
  async untilNeedless(signal: AbortSignal): Promise<boolean> {
    while (!signal.aborted) {
      try {
        await this.#queue.changed(LOOK_AGAIN, signal, this.#seen);
        if (!signal.aborted && (await this.look()).state === 'done') return true;
      } catch (error) {
        if (error instanceof QueueRemovedError) return true;
        // Other trouble with the queue is for those who need it now.
        await new Promise((resolve) => setTimeout(resolve, signal.aborted ? 0 : LOOK_AGAIN / 10));
      }
    }
    return false;
  }
}
