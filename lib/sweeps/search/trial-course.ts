// Which trials are stopped early, by what has been reported.

import { metricOf } from '../progress/index.ts';
import type { Queue, SearchRecord } from '../queue/index.ts';
import type { Values } from '../task/index.ts';

/** The values that a running trial has reported. */
export class TrialCourse {
  readonly #search: SearchRecord;
  /** The task's id. */
  readonly #id: string;
  #last: Values = {};
  #step = 0;
  #best: number | null = null;
  /** The values at the rungs that were reached, in order, and the rungs that the queue knows of. */
  readonly #rungs = new Map<number, number>();
  readonly #told = new Set<number>();
  #isNews = false;

  constructor(search: SearchRecord, id: string) {
    this.#search = search;
    this.#id = id;
  }

  /** The values that were reported last, each with its last value. */
  get last(): Values {
    return this.#last;
  }

  get step(): number {
    return this.#step;
  }

  /** @param step null: the next one */
  note(step: number | null, values: Values): void {
    this.#step = step ?? this.#step + 1;
    this.#last = { ...this.#last, ...values };
    const { metric, stopping } = this.#search;
    const value = metric === null ? null : metricOf(values, metric.name);
    if (value === null || metric === null || stopping === null) return;
    this.#isNews = true;
    const choose = metric.goal === 'minimize' ? Math.min : Math.max;
    this.#best = choose(value, this.#best ?? value);
    for (const rung of stopping.rungs)
      if (rung <= this.#step && !this.#rungs.has(rung)) this.#rungs.set(rung, value);
  }

  /**
   * Tells the queue the values at the rungs that were reached since the last call, and compares them with those of other trials.
   * @returns whether the trial is to be stopped
   */
  async isBad(queue: Pick<Queue, 'report'>): Promise<boolean> {
    const { metric, stopping, phase } = this.#search;
    if (!this.#isNews || metric === null || stopping === null) return false;
    this.#isNews = false;
    const reached = [...this.#rungs];
    for (const [at, [step, value]] of reached.entries()) {
      const isLast = at === reached.length - 1;
      if (this.#told.has(step) && !isLast) continue;
      const others = await queue.report({ phase, id: this.#id, step, value });
      this.#told.add(step);
      // Others may have become better since: W&B looks again at the last rung, and at no other.
      if (!isLast) continue;
      const isBetter = (one: number, other: number) =>
        metric.goal === 'minimize' ? one < other : one > other;
      const all = [value, ...others].sort((a, b) => (isBetter(a, b) ? -1 : 1));
      // Computed as in Python there: 1/eta is rounded first.
      const threshold = all[Math.floor((1 / stopping.eta) * all.length)] as number;
      return isBetter(threshold, stopping.strict ? value : (this.#best ?? value));
    }
    return false;
  }
}
