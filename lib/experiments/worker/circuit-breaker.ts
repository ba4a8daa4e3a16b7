import { MAX_DELAY_MS, type Queue } from '../queue/index.ts';

const MOST = 3;
/** Between two starts of a task that isn't to blame, in ms. */
const FIRST_DELAY = 1_000;

/** What goes wrong on one worker without anything that succeeds in between. */
export class Failures {
  readonly #tasks = new Map<string, string>();
  #environment: string[] = [];

  succeeded(): void {
    this.#tasks.clear();
    this.#environment = [];
  }

  /** @returns once different tasks have failed so often that it is likely not their fault: the error that they have in common */
  task(id: string, error: string): string | null {
    this.#environment = [];
    this.#tasks.delete(id);
    this.#tasks.set(id, error);
    return this.#tasks.size < MOST
      ? null
      : common([...this.#tasks.values()], 'tasks failed one after the other');
  }

  environment(why: string): string | null {
    this.#environment.push(why);
    return this.#environment.length < MOST
      ? null
      : common(this.#environment, 'times in a row a task could not be run');
  }
}

/** @param errors the latest last; what comes behind their first lines are details */
function common(errors: readonly string[], what: string): string {
  const summaries = errors.map((error) => error.split('\n')[0] ?? '');
  const same = new Set(summaries).size === 1;
  return `${errors.length} ${what}, ${same ? 'all with' : 'the last with'}: ${errors.at(-1)}`;
}

const counters = new WeakMap<Queue, Map<string, number>>();

/** How long to wait until a task is started again that wasn't to blame, in ms: longer each time, whichever worker of this process had it. */
export function delayOf(queue: Queue, taskId: string): number {
  const counts = counters.get(queue) ?? new Map<string, number>();
  counters.set(queue, counts);
  const count = counts.get(taskId) ?? 0;
  counts.set(taskId, count + 1);
  return Math.min(FIRST_DELAY * 2 ** count, MAX_DELAY_MS);
}

/** It has been run. */
export function forgetDelay(queue: Queue, taskId: string): void {
  counters.get(queue)?.delete(taskId);
}
