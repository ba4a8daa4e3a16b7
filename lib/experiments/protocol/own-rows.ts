import { setTimeout as sleep } from 'node:timers/promises';
import type { AttemptInfo, Queue } from '../queue/index.ts';
import type { RowsOfTask } from '../results/index.ts';
import type { Values } from '../task/index.ts';

export interface OwnRowsOptions {
  queue: Pick<Queue, 'attempts'>;
  /** What the task's table has; null: that isn't known here. `inStep`: once all rows are filled in that are known to be other tasks'. */
  rowsOf: (taskId: string, inStep: boolean) => Promise<RowsOfTask | null>;
}

/** How long a look at a table may take, in ms: a worker waits for its answer. */
const PATIENCE = 5_000;
/** Workers that write their row say so in the same moment: who hasn't within so many ms hasn't written it. */
const MOMENT = 500;
/** The worker has a row, and nobody can tell which of several it is. */
const UNKNOWN: Values = {};

/**
 * Finds the rows of workers that write them themselves and send no result. Where a row fits several tasks, which differ in the seed for
 * instance, it is this task's if it came while this one ran, as the only one. Which rows were there before is known to this process only:
 * after a restart, rows of tasks that ran meanwhile are only counted.
 */
export class OwnRows {
  readonly #options: OwnRowsOptions;
  /** What the rows said that fitted the task before it was begun, by token. */
  readonly #before = new Map<string, string[]>();
  /** Those whose row is looked for at the moment, by task. */
  readonly #ending = new Map<string, { contested: boolean }>();

  constructor(options: OwnRowsOptions) {
    this.#options = options;
  }

  /** Before the worker knows that the task is its. */
  async begin({ token, taskId }: AttemptInfo): Promise<void> {
    const rows = await this.#look(taskId, false);
    if (rows !== null)
      this.#before.set(
        token,
        rows.shared.map(({ content }) => content),
      );
  }

  end(token: string): void {
    this.#before.delete(token);
  }

  /** The result that the worker has written. null: it has written none, as far as can be seen */
  async resultOf({ token, taskId }: AttemptInfo, isLocal: boolean): Promise<Values | null> {
    const ending = { contested: false };
    this.#ending.set(taskId, ending);
    try {
      const rows = await this.#look(taskId, true);
      if (rows === null) return null;
      if (rows.own !== null) return rows.own;
      this.#contest(rows, ending);
      const before = this.#before.get(token);
      if (before === undefined) return rows.spare > 0 ? UNKNOWN : null;
      const row = newest(rows, before);
      if (row === null) return null;
      if (row === 'several' || !isLocal) return UNKNOWN;
      if (!ending.contested && !(await this.#hasRival(rows))) return row.result;
      // Another worker may have written this row, over ours: then it says so now.
      await sleep(MOMENT);
      const later = await this.#look(taskId, true);
      const again = later && newest(later, before);
      if (again === null) return null;
      const isSame = again !== 'several' && again.content === row.content;
      return isSame && !ending.contested ? row.result : UNKNOWN;
    } finally {
      this.#ending.delete(taskId);
    }
  }

  /** Two that end at the same time: if there is one row, it is either's. */
  #contest({ rivals }: RowsOfTask, ending: { contested: boolean }): void {
    for (const [taskId, other] of this.#ending) {
      if (rivals.has(taskId)) other.contested = ending.contested = true;
    }
  }

  /** Whether somebody runs a task that the row fits as well. */
  async #hasRival({ rivals }: RowsOfTask): Promise<boolean> {
    return (await this.#options.queue.attempts('living')).some(({ taskId }) => rivals.has(taskId));
  }

  async #look(taskId: string, inStep: boolean): Promise<RowsOfTask | null> {
    const late = new AbortController();
    const patience = sleep(PATIENCE, null, { signal: late.signal }).catch(() => null);
    try {
      return await Promise.race([this.#options.rowsOf(taskId, inStep), patience]);
    } catch {
      return null; // the manager says what is wrong with the tables
    } finally {
      late.abort();
    }
  }
}

/** The row that wasn't there before. null: there is none, or all are known to be others'. */
function newest(
  { shared, spare }: RowsOfTask,
  before: readonly string[],
): RowsOfTask['shared'][number] | 'several' | null {
  const left = [...before];
  const news = shared.filter(({ content }) => {
    const at = left.indexOf(content);
    if (at !== -1) left.splice(at, 1);
    return at === -1;
  });
  if (news.length === 0 || spare === 0) return null;
  return news.length === 1 && news[0] !== undefined ? news[0] : 'several';
}
