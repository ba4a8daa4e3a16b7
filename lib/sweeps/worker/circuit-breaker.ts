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
