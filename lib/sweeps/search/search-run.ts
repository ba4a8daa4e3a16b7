import { createHash } from 'node:crypto';
import { GPUOwnerError, ifFailed } from '../../errors.ts';
import { sleep } from '../../platform/index.ts';
import { type Comparison, drawTrials, isDrawn, type SeededSearch } from '../files/index.ts';
import { isTrial, metricOf, stepOf } from '../progress/index.ts';
import {
  batchesOf,
  completionsAfter,
  type Queue,
  type SearchRecord,
  type State,
  type TaskRow,
  type WorkerInfo,
} from '../queue/index.ts';
import { type TaskSpec, taskId, type Values } from '../task/index.ts';
import { codeSpace, codeTrial, decodeTrial, isInSpace } from './coding.ts';
import { Sampler, SamplerGoneError } from './sampler.ts';

/** The workers of this process. */
export interface WorkersHere {
  count: number;
  isOwn: (worker: WorkerInfo) => boolean;
}

interface SearchRunOptions {
  queue: Queue;
  search: SeededSearch;
  /** The Python that has Optuna, and the directory where it is started. */
  python: string;
  directory: string;
  /** Whether this process is the one that adds trials. */
  manages: () => boolean;
  /** Makes a task of a trial. */
  add: (task: TaskSpec) => Promise<void>;
  /** null: other processes have them all. */
  workers: () => WorkersHere | null;
  tell: (text: string) => void;
}

/** A trial that is a task. */
interface KnownTrial {
  id: string;
  parameters: Values;
  state: State;
  /** ms since the epoch: when a worker got it, and when it ended. */
  since: number;
  ended: number;
  /** The sampler's number of it, or NONE. null: the sampler doesn't know it yet. */
  number: number | null;
}

/** The limit for changes that the queue doesn't tell. */
const RECHECK_MS = 5_000;
const RETRY_MS = 1_000;
const MAX_RESTARTS = 3;
/** The number of a trial that no sampler has. */
const NONE = -1;
/** Suggestions in a row that are tasks already, before a random trial takes their place. */
const MAX_REPEATED = 10;

/**
 * Makes tasks of trials while workers are free. All of it is in the task list: after a restart, a new sampler gets everything.
 */
export class SearchRun {
  readonly #options: SearchRunOptions;
  readonly #trials = new Map<string, KnownTrial>();
  #left: SearchRecord['left'] = {};
  #sampler: Sampler | null = null;
  /** Whether the sampler knows all trials. */
  #isReady = false;
  /** Whether no trial is added any longer. */
  #isOver = false;
  #drawn: Generator<TaskSpec, void> | null = null;
  #restarts = 0;
  #error: GPUOwnerError | null = null;

  constructor(options: SearchRunOptions) {
    this.#options = options;
  }

  /**
   * Reads the trials that are tasks already, and starts the sampler.
   * @throws ERR_INVALID_ARGUMENT if Optuna isn't there; SamplerGoneError, also if the signal comes
   */
  async begin(signal: AbortSignal): Promise<void> {
    const close = () => this.close();
    signal.addEventListener('abort', close);
    try {
      await this.#begin(signal);
    } finally {
      signal.removeEventListener('abort', close);
    }
  }

  async #begin(signal: AbortSignal): Promise<void> {
    await this.#read();
    // No sampler is there yet that the signal could have ended.
    if (signal.aborted) throw new SamplerGoneError('was not started');
    if (this.remaining === 0 || !this.#options.manages()) return;
    await this.#start();
    this.#isReady = true;
  }

  /** How many trials aren't tasks yet. */
  get remaining(): number {
    if (this.#isOver || this.#error !== null) return 0;
    return Math.max(0, this.#options.search.trials - this.#trials.size);
  }

  /** The tasks of its phase that aren't its trials. */
  get left(): SearchRecord['left'] {
    return this.#left;
  }

  /** Why the search has ended early; null: it hasn't. */
  get error(): GPUOwnerError | null {
    return this.#error;
  }

  /** The trials that are tasks, by their ids. */
  get trials(): { has(id: string): boolean; readonly size: number } {
    return this.#trials;
  }

  /** Works until all trials are tasks, or the signal comes. Never rejects. */
  async run(signal: AbortSignal): Promise<void> {
    const { queue, tell } = this.#options;
    signal.addEventListener('abort', () => this.close(), { once: true });
    while (!signal.aborted && this.remaining > 0) {
      const seen = queue.changeCount;
      try {
        if (!this.#options.manages()) {
          this.close();
          await this.#read();
        } else {
          if (!this.#isReady) await this.#begin(signal);
          // First: an end that it sees is reported below.
          const isWanted = await this.#hasIdleWorker();
          await this.#update();
          if (isWanted && (await this.#mayAdd())) {
            await this.#addTrial();
            continue;
          }
        }
        await queue.changed(RECHECK_MS, signal, seen);
      } catch (error) {
        if (signal.aborted) break;
        this.#drawn = null; // the last task of the generator may not have been added
        if (error instanceof SamplerGoneError && this.#restarts++ < MAX_RESTARTS) this.close();
        else if (error instanceof GPUOwnerError && error.code === 'ERR_QUEUE') await sleep(RETRY_MS, signal);
        else {
          this.#error = error as GPUOwnerError;
          tell(`the search has ended: ${this.#error.message}`);
        }
      }
    }
    const { search } = this.#options;
    // The manager tells what is wrong with the queue.
    if (this.remaining === 0)
      await noteSearch(queue, search, true, search.seed, this.#left).catch(ifFailed(undefined));
    this.close();
  }

  close(): void {
    this.#sampler?.close();
    this.#sampler = null;
    this.#isReady = false;
  }

  /** Reads all trials, in the order in which they were added. */
  async #read(): Promise<void> {
    const { queue, search } = this.#options;
    this.#trials.clear();
    this.#left = await findLeft(queue, search, search.seed, await queue.search());
    for await (const { task, state, ended } of queue.tasks()) {
      if (!isTrial({ phase: search.name, left: this.#left }, task)) continue;
      const { id, parameters } = task;
      this.#trials.set(id, { id, parameters, state, since: 0, ended: ended ?? 0, number: null });
    }
  }

  /** Starts a sampler, and tells it everything in the order in which it happened. */
  async #start(): Promise<void> {
    const { queue, search, python, directory } = this.#options;
    const { method, metric, parameters } = search;
    this.close();
    const goal = metric?.goal ?? 'minimize';
    if (!isDrawn(search)) {
      this.#sampler = new Sampler({ python, directory, method, goal, space: codeSpace(parameters) });
      await this.#sampler.begin();
    }
    const results = new Map<string, Values>();
    for await (const { task, result } of completionsAfter(queue, 0))
      if (this.#trials.has(task.id)) results.set(task.id, result);
    const trials = [...this.#trials.values()];
    for (const trial of trials) {
      const [first] = await queue.attempts({ taskId: trial.id });
      trial.since = first?.since ?? Number.POSITIVE_INFINITY;
    }
    // A trial is chosen before a worker gets it, or any later one.
    let earliest = Number.POSITIVE_INFINITY;
    for (const trial of trials.toReversed()) {
      earliest = Math.min(earliest, trial.since);
      trial.since = earliest;
    }
    const ended = trials.filter(({ state }) => hasEnded(state)).sort((a, b) => a.ended - b.ended);
    const tellUntil = async (time: number) => {
      while (ended[0] !== undefined && ended[0].ended <= time && ended[0].number !== null) {
        const trial = ended.shift() as KnownTrial;
        await this.#tell(trial, results.get(trial.id) ?? {});
      }
    };
    for (const [index, trial] of trials.entries()) {
      await tellUntil(trial.since);
      trial.number = await this.#introduce(trial.parameters, index);
    }
    await tellUntil(Number.POSITIVE_INFINITY);
  }

  /** Tells the sampler of a trial that it doesn't choose now. @returns the sampler's number of it, or NONE */
  async #introduce(parameters: Values, index: number): Promise<number> {
    const { search } = this.#options;
    // null: a task of this phase from before, with values that the search doesn't have.
    const coded = codeTrial(search.parameters, parameters);
    if (this.#sampler === null || coded === null) return NONE;
    return (await this.#sampler.ask(seedOf(search.seed, index, 0), coded)).number;
  }

  /** Tells the sampler what has ended since the last time. */
  async #update(): Promise<void> {
    const { queue } = this.#options;
    await queue.endLost();
    const open = [...this.#trials.values()].filter(({ state }) => !hasEnded(state));
    const ended: TaskRow[] = [];
    for (const batch of batchesOf(open)) {
      const rows = await queue.lookUp(batch.map(({ id }) => id));
      for (const [at, row] of rows.entries()) {
        const trial = batch[at] as KnownTrial;
        trial.state = row?.state ?? 'cancelled';
        if (row !== null && hasEnded(row.state)) ended.push(row);
      }
    }
    ended.sort((a, b) => (a.ended ?? 0) - (b.ended ?? 0) || (a.sequence ?? 0) - (b.sequence ?? 0));
    for (const { task, sequence } of ended) {
      const [completion] = sequence === null ? [] : await queue.completions(sequence - 1, 1);
      const result = completion?.task.id === task.id ? completion.result : {};
      await this.#tell(this.#trials.get(task.id) as KnownTrial, result);
    }
  }

  async #tell({ number }: KnownTrial, result: Values): Promise<void> {
    const { metric } = this.#options.search;
    if (metric === null) return;
    const value = metricOf(result, metric.name);
    if (number !== null && number !== NONE) await this.#sampler?.tell(number, value, stepOf(result));
    if (value === null || metric.target === null) return;
    if (metric.goal === 'minimize' ? value <= metric.target : value >= metric.target)
      this.#end(`${metric.name} is ${value}, and was to reach ${metric.target}`);
  }

  #end(why: string): void {
    if (!this.#isOver) this.#options.tell(`the search has ended after ${this.#trials.size} trials: ${why}`);
    this.#isOver = true;
  }

  /** Whether a worker has nothing to do; those of other processes count as one. */
  async #hasIdleWorker(): Promise<boolean> {
    const { queue, workers } = this.#options;
    const own = workers();
    if (own === null) return true;
    const living = await queue.attempts('living');
    const active = living.filter(({ worker }) => own.isOwn(worker)).length;
    return active < own.count || active < living.length;
  }

  /** Whether no trial waits for a worker. */
  async #mayAdd(): Promise<boolean> {
    if (this.remaining === 0) return false;
    if ([...this.#trials.values()].some(({ state }) => state === 'pending')) return false;
    return (await this.#options.queue.paused()) === null;
  }

  async #addTrial(): Promise<void> {
    const { search } = this.#options;
    const sampler = this.#sampler;
    for (let repeated = 0; sampler !== null && repeated < MAX_REPEATED; repeated++) {
      const { number, parameters } = await sampler.ask(
        seedOf(search.seed, this.#trials.size, repeated),
        null,
      );
      const task = search.taskOf(decodeTrial(search.parameters, parameters));
      if (!this.#isKnown(task)) return this.#add(task, number);
      await sampler.tell(number, null, null);
    }
    // Without a sampler, and where it insists on trials that are tasks already while there are others: gp does so at an optimum.
    this.#drawn ??= drawTrials(search);
    for (let next = this.#drawn.next(); !next.done; next = this.#drawn.next()) {
      const task = next.value;
      if (!this.#isKnown(task))
        return this.#add(task, await this.#introduce(task.parameters, this.#trials.size));
    }
    this.#end('it finds no others');
  }

  #isKnown({ parameters }: TaskSpec): boolean {
    const id = taskId(parameters);
    return this.#trials.has(id) || Object.hasOwn(this.#left, id);
  }

  async #add(task: TaskSpec, number: number): Promise<void> {
    const { parameters } = task;
    await this.#options.add(task);
    const id = taskId(parameters);
    this.#trials.set(id, { id, parameters, state: 'pending', since: 0, ended: 0, number });
    this.#restarts = 0;
  }
}

/** The tasks of a phase that aren't trials of a search, as {@link SearchRecord} has them. @param before the last search */
export async function findLeft(
  queue: Pick<Queue, 'tasks'>,
  search: Pick<SeededSearch, 'name' | 'parameters' | 'taskOf'>,
  seed: number | null,
  before: SearchRecord | null,
): Promise<SearchRecord['left']> {
  const left: Record<string, number | null> = {};
  const earlier = before?.phase === search.name ? before : null;
  for await (const { task } of queue.tasks()) {
    if (!isTrial({ phase: search.name, left: {} }, task)) continue;
    const { id } = task;
    const own = (Object.hasOwn(earlier?.left ?? {}, id) ? earlier?.left[id] : earlier?.seed) ?? null;
    const isOther = seed !== null && own !== null && own !== seed;
    if (isOther || !isInSpace(search, task)) left[id] = own;
  }
  return left;
}

/** Keeps in the task list what a search is, for those who show it and for workers. */
export async function noteSearch(
  queue: Queue,
  search: Comparison,
  isOver: boolean,
  seed: number | null,
  left: SearchRecord['left'],
): Promise<void> {
  const { name: phase, trials, metric, earlyStopping: stopping } = search;
  const compared = metric && { name: metric.name, goal: metric.goal };
  await queue.setSearch({ phase, trials, metric: compared, stopping, seed, left, isOver });
}

function hasEnded(state: State): boolean {
  return state !== 'pending' && state !== 'active';
}

/** A seed for one trial. @param repeated how often it was chosen again, as it was known */
function seedOf(seed: number, trial: number, repeated: number): number {
  const hash = createHash('sha256').update(JSON.stringify([seed, trial, repeated]));
  return hash.digest().readUInt32BE(0) >>> 1;
}
