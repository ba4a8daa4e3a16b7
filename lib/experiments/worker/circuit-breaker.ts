import { now } from '../../platform/index.ts';

/** Failures in a row after which a worker gets no more tasks. */
const MAX_FAILURES = 3;

/** Counts failures of one worker in a row, and stops it after three: the tasks are probably not to blame. */
export class CircuitBreaker {
  readonly #tasks = new Map<string, string>();
  #environment: string[] = [];

  succeeded(): void {
    this.#tasks.clear();
    this.#environment = [];
  }

  /** Counts different tasks. @returns what the failures have in common, once it is time to stop; else null */
  taskFailed(id: string, error: string): string | null {
    this.#environment = [];
    this.#tasks.delete(id);
    this.#tasks.set(id, error);
    return this.#tasks.size < MAX_FAILURES
      ? null
      : common([...this.#tasks.values()], 'tasks failed in a row');
  }

  /** Counts tasks that couldn't be run. @returns as `taskFailed` */
  environmentFailed(why: string): string | null {
    this.#environment.push(why);
    return this.#environment.length < MAX_FAILURES
      ? null
      : common(this.#environment, 'times in a row, a task could not be run');
  }
}

/** @param errors the latest last; only their first lines are compared */
function common(errors: readonly string[], what: string): string {
  const summaries = errors.map((error) => error.split('\n')[0] ?? '');
  const same = new Set(summaries).size === 1;
  return `${errors.length} ${what}, ${same ? 'all with' : 'the last with'}: ${errors.at(-1)}`;
}

/** A blocked worker that hasn't asked for so long was restarted when it comes back. */
const RESTART_TIMEOUT_MS = 60_000;

interface KnownWorker {
  breaker: CircuitBreaker;
  /** Why it gets no tasks; null: it does. */
  why: string | null;
  /** When it sent its last message. */
  heard: number;
}

/**
 * Blocks workers that fail at one task after the other: they can't be stopped, so they get no more tasks. The rule is that of `exp worker`:
 * three different tasks, and no success in between.
 */
export class WorkerCircuitBreaker {
  readonly #workers = new Map<string, KnownWorker>();
  #paused = false;

  /** Notes that a worker asks for a task. @returns why it gets none; null: it may have one */
  asks(worker: string): string | null {
    const time = now();
    const known = this.#workers.get(worker);
    // A worker that isn't blocked may have been silent because of a long task.
    if (known !== undefined && known.why !== null && time - known.heard >= RESTART_TIMEOUT_MS)
      this.#workers.delete(worker);
    return this.#hear(worker).why;
  }

  succeeded(worker: string): void {
    const known = this.#hear(worker);
    known.breaker.succeeded();
    known.why = null;
  }

  /** @returns why the worker gets no more tasks, if that begins now */
  failed(worker: string, taskId: string, error: string): string | null {
    const known = this.#hear(worker);
    const before = known.why;
    known.why = known.breaker.taskFailed(taskId, error) ?? before;
    return before === null ? known.why : null;
  }

  /** Whether all workers that were heard of lately are blocked. A worker with a task may be silent for longer. */
  get allBlocked(): boolean {
    const time = now();
    return [...this.#workers.values()].every(
      ({ why, heard }) => why !== null || time - heard >= RESTART_TIMEOUT_MS,
    );
  }

  /** Notes that the queue is paused, for whatever reason. */
  notePause(): void {
    this.#paused = true;
  }

  /** Notes that the queue isn't paused. @returns whether it was: then the user wants the workers to try once more */
  resumed(): boolean {
    if (!this.#paused) return false;
    this.#paused = false;
    this.#workers.clear();
    return true;
  }

  #hear(worker: string): KnownWorker {
    const known = this.#workers.get(worker) ?? { breaker: new CircuitBreaker(), why: null, heard: 0 };
    this.#workers.set(worker, known);
    known.heard = now();
    return known;
  }
}
