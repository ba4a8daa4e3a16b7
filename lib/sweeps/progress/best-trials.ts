import { sanitize } from '../../platform/index.ts';
import { type Completion, completionsAfter, type Queue, type SearchRecord } from '../queue/index.ts';
import { formatValue, Literal, type Task, type Value, type Values } from '../task/index.ts';

/** The member of a result that says at which step a trial was stopped early. */
export const STOPPED = 'stopped';

/** A trial with a value of the metric. */
export interface Trial {
  task: Task;
  value: number;
  /** The step at which it was stopped early; null: it wasn't. */
  stopped: number | null;
}

/** The best trials of a search, for people. */
export interface Best {
  metric: string;
  /** The best first. */
  trials: readonly Trial[];
  /** How many trials were stopped early, of those with a value. */
  stopped: number;
}

/** Describes a trial: `loss=0.1 grid_3 lr=0.01`. */
export function describeTrial(metric: string, { task, value, stopped }: Trial): string {
  const end = stopped === null ? '' : ` (stopped at step ${stopped})`;
  return sanitize(`${metric}=${shownValue(value)} ${describeParameters(task)}`, 300) + end;
}

function describeParameters({ name, parameters }: Task): string {
  return [name, ...Object.entries(parameters).map(([key, each]) => `${key}=${shownValue(each)}`)].join(' ');
}

/** In few digits: tables have all of them. */
function shownValue(value: Value): string {
  return typeof value === 'number' ? String(Number(value.toPrecision(5))) : formatValue(value);
}

/** The trials of a search that have ended with a value, as they come. */
export class BestTrials {
  readonly #queue: Pick<Queue, 'completions' | 'counts' | 'search'>;
  #search: SearchRecord | null = null;
  #cursor = 0;
  #seen = 0;
  #trials: Trial[] = [];
  /** The best first. null: others have come since. */
  #ranked: readonly Trial[] | null = null;
  #without: Pick<Completion, 'task' | 'result'> | null = null;

  constructor(queue: Pick<Queue, 'completions' | 'counts' | 'search'>) {
    this.#queue = queue;
  }

  get search(): SearchRecord | null {
    return this.#search;
  }

  /** Reads what has ended since the last call. */
  async update(): Promise<void> {
    const search = await this.#queue.search();
    const { completed } = await this.#queue.counts();
    // Another search, or results that were taken back.
    if (JSON.stringify(search) !== JSON.stringify(this.#search) || completed < this.#seen) {
      this.#search = search;
      this.#trials = [];
      this.#ranked = null;
      this.#without = null;
      this.#cursor = 0;
      this.#seen = 0;
    }
    const metric = search?.metric;
    if (search === null || !metric) return;
    for await (const { sequence, task, result } of completionsAfter(this.#queue, this.#cursor)) {
      this.#seen++;
      this.#cursor = sequence;
      if (!isTrial(search, task)) continue;
      const value = metricOf(result, metric.name);
      if (value === null) this.#without ??= { task, result };
      else {
        this.#trials.push({ task, value, stopped: stepOf(result) });
        this.#ranked = null;
      }
    }
  }

  /** The first one that has ended without a value of the metric. null: all have one. */
  get withoutValue(): Pick<Completion, 'task' | 'result'> | null {
    return this.#without;
  }

  /** The best ones, the best first; of equal ones, the first. null: the search compares nothing. */
  best(count: number): Best | null {
    const metric = this.#search?.metric;
    if (!metric) return null;
    const sign = metric.goal === 'maximize' ? -1 : 1;
    this.#ranked ??= this.#trials.toSorted((a, b) => sign * (a.value - b.value));
    const trials = this.#ranked.slice(0, count);
    const stopped = this.#trials.filter((each) => each.stopped !== null).length;
    return {
      metric: metric.name,
      trials,
      stopped,
    };
  }
}

/** The step at which a trial was stopped early. null: it wasn't, or the program has a value of this name. */
export function stepOf(result: Values): number | null {
  const step = metricOf(result, STOPPED);
  return step !== null && Number.isSafeInteger(step) && step >= 0 ? step : null;
}

/** Whether a task is a trial of a search. */
export function isTrial(
  { phase, left }: Pick<SearchRecord, 'phase' | 'left'>,
  { id, destinations }: Completion['task'],
): boolean {
  return destinations.some((each) => each.phase === phase) && !Object.hasOwn(left, id);
}

/** The value of a metric: a number of the result, or of a map in it (`valid.loss`). null: there is none, or no finite one. */
export function metricOf(result: Values, name: string): number | null {
  const number = numberOf(Object.hasOwn(result, name) ? result[name] : memberOf(result, name.split('.')));
  return number !== null && Number.isFinite(number) ? number : null;
}

function memberOf(values: Values, path: readonly string[]): Value | undefined {
  let value: Value | undefined = values;
  for (const key of path) {
    const isMap: boolean = typeof value === 'object' && value !== null && !(value instanceof Literal);
    value = isMap && Object.hasOwn(value as Values, key) ? (value as Values)[key] : undefined;
  }
  return value;
}

function numberOf(value: Value | undefined): number | null {
  const data = value instanceof Literal ? value.data : value;
  return typeof data === 'number' ? data : null;
}
