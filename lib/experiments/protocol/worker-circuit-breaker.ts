import { now } from '../../platform/index.ts';
import { Failures } from '../worker/index.ts';

/** One that gets nothing, and hasn't asked for so long, has been started again when it comes back. In ms. */
const QUIET = 60_000;

interface Known {
  failures: Failures;
  /** Why it gets nothing; null: it does. */
  why: string | null;
  /** When it was heard of last. */
  heard: number;
}

/**
 * Workers that fail at one task after the other, as far as this process has seen: they can't be stopped, so they are given
 * nothing. The same rule as for those of `exp worker`: three different tasks, and no success in between.
 */
export class Troubled {
  readonly #workers = new Map<string, Known>();
  #paused = false;

  /** It asks for a task. @returns why it gets none; null: it may have one */
  asks(worker: string): string | null {
    const time = now();
    const known = this.#workers.get(worker);
    // Without that, a long task may have kept it.
    if (known !== undefined && known.why !== null && time - known.heard >= QUIET)
      this.#workers.delete(worker);
    return this.#hear(worker).why;
  }

  succeeded(worker: string): void {
    const known = this.#hear(worker);
    known.failures.succeeded();
    known.why = null;
  }

  /** @returns why it gets no more tasks, if that begins now */
  failed(worker: string, taskId: string, error: string): string | null {
    const known = this.#hear(worker);
    const before = known.why;
    known.why = known.failures.task(taskId, error) ?? before;
    return before === null ? known.why : null;
  }

  /** Do all workers get nothing that were heard of lately? Who has a task may be silent for longer. */
  get all(): boolean {
    const time = now();
    return [...this.#workers.values()].every(({ why, heard }) => why !== null || time - heard >= QUIET);
  }

  /** Nobody gets tasks, for whatever reason. */
  notePause(): void {
    this.#paused = true;
  }

  /** There is no pause. @returns whether there was: then somebody wants them to try once more */
  resumed(): boolean {
    if (!this.#paused) return false;
    this.#paused = false;
    this.#workers.clear();
    return true;
  }

  #hear(worker: string): Known {
    const known = this.#workers.get(worker) ?? { failures: new Failures(), why: null, heard: 0 };
    this.#workers.set(worker, known);
    known.heard = now();
    return known;
  }
}
