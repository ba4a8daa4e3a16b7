import type { Sweep } from '../files/index.ts';
import { type Tally, tallyOf } from '../progress/index.ts';
import { batchesOf, type Counts, type Queue, STATES, type State } from '../queue/index.ts';
import { taskId } from '../task/index.ts';

/** Tasks of larger sweeps are not told from others: their ids would have to be kept. */
const MAX_TASKS = 1_000_000;

type Part = Pick<Queue, 'tasks' | 'lookUp'>;
type Trials = Pick<ReadonlySet<string>, 'has' | 'size'>;

/**
 * The tasks of the queue that a call asked for. The others are followed, since they are few or have ended: from an earlier sweep, or of
 * another process.
 */
export class AskedTasks {
  readonly #ids: ReadonlySet<string> | null;
  readonly #trials: Trials | null;
  /** The directories whose tables get their rows; null: those of all tasks. */
  readonly outputDirectories: ReadonlySet<string> | null;
  /** How many tasks the queue had when the others were read. */
  #known = -1;
  /** The other tasks that had ended, by state, and the ids of the others that hadn't. */
  #ended = noCounts();
  #living = new Map<string, State>();

  /** @param sweep its tasks were asked for; null: all are @param trials those of its search that are tasks by now */
  constructor(sweep: Sweep | null, trials: Trials | null = null) {
    this.#trials = trials;
    if (sweep === null || sweep.size > MAX_TASKS) {
      this.#ids = null;
      this.outputDirectories = null;
      return;
    }
    const ids = new Set<string>();
    const outputDirectories = new Set<string>();
    for (const { parameters } of sweep.tasks()) ids.add(taskId(parameters));
    for (const { outputDirectory } of sweep.samples()) outputDirectories.add(outputDirectory);
    this.#ids = ids;
    this.outputDirectories = outputDirectories;
  }

  includes(id: string): boolean {
    return this.#ids === null || this.#ids.has(id) || this.#trials?.has(id) === true;
  }

  /** Tells the tasks that were asked for from the others. @param counts all tasks of the queue */
  async split(queue: Part, counts: Counts): Promise<{ asked: Tally; others: Tally }> {
    const all = tallyOf(counts);
    const asked = (this.#ids?.size ?? 0) + (this.#trials?.size ?? 0);
    const hasOthers = this.#ids !== null && asked !== all.total;
    if (!hasOthers) return { asked: all, others: tallyOf(noCounts()) };
    if (all.total === this.#known) await this.#follow(queue);
    else await this.#read(queue);
    this.#known = all.total;
    const others = { ...this.#ended };
    for (const state of this.#living.values()) others[state]++;
    const meant = noCounts();
    // Tasks may change between two questions.
    for (const state of STATES) meant[state] = Math.max(0, counts[state] - others[state]);
    return { asked: tallyOf(meant), others: tallyOf(others) };
  }

  async #read(queue: Part): Promise<void> {
    this.#ended = noCounts();
    this.#living.clear();
    for await (const { task, state } of queue.tasks())
      if (!this.includes(task.id)) this.#note(task.id, state);
  }

  async #follow(queue: Part): Promise<void> {
    for (const ids of batchesOf([...this.#living.keys()])) {
      for (const row of await queue.lookUp(ids)) if (row !== null) this.#note(row.task.id, row.state);
    }
  }

  #note(id: string, state: State): void {
    if (state === 'pending' || state === 'active') this.#living.set(id, state);
    else {
      this.#living.delete(id);
      this.#ended[state]++;
    }
  }
}

function noCounts(): Record<State, number> {
  return { pending: 0, active: 0, completed: 0, failed: 0, cancelled: 0 };
}
