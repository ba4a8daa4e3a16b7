import { setTimeout as sleep } from 'node:timers/promises';
import type { AttemptInfo, Queue } from '../queue/index.ts';
import type { RowsOfTask } from '../results/index.ts';
import type { Values } from '../task/index.ts';

export interface OwnRowsOptions {
  queue: Pick<Queue, 'attempts'>;
  /** Reads the rows of the task's table; null: they aren't known here. `inStep`: after the rows of other tasks were filled in. */
  rowsOf: (taskId: string, inStep: boolean) => Promise<RowsOfTask | null>;
}

/** How long reading a table may take: a worker waits for its answer. */
const READ_TIMEOUT_MS = 5_000;
/** A worker that writes its row completes its task at once: after so long, a row is not another worker's. */
const COMPLETION_TIMEOUT_MS = 500;
/** The result of a worker whose row can't be told from others. */
const UNKNOWN: Values = {};

/**
 * Finds the rows of workers that write them themselves and send no result. Where a row fits several tasks, which differ in the seed for
 * instance, it is this task's if it came while this one ran, as the only one. Which rows were there before is known to this process only:
 * after a restart, rows of tasks that ran meanwhile are only counted.
 */
export class OwnRows {
  readonly #options: OwnRowsOptions;
  /** Rows that fitted the task before the attempt began, by token. */
  readonly #before = new Map<string, string[]>();
  /** Completions whose row is being looked for, by task. */
  readonly #ending = new Map<string, { contested: boolean }>();

  constructor(options: OwnRowsOptions) {
    this.#options = options;
  }

  /** To be called before the worker gets the task. */
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

  /** Finds the result that the worker has written; null: it has written none, as far as can be seen. */
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
      await sleep(COMPLETION_TIMEOUT_MS);
      const later = await this.#look(taskId, true);
      const again = later && newest(later, before);
      if (again === null) return null;
      const isSame = again !== 'several' && again.content === row.content;
      return isSame && !ending.contested ? row.result : UNKNOWN;
    } finally {
      this.#ending.delete(taskId);
    }
  }

  /** Marks completions at the same time: a single row may be that of either. */
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
    const timeout = sleep(READ_TIMEOUT_MS, null, { signal: late.signal }).catch(() => null);
    try {
      return await Promise.race([this.#options.rowsOf(taskId, inStep), timeout]);
    } catch {
      return null; // the manager says what is wrong with the tables
    } finally {
      late.abort();
    }
  }
}

/** Finds the row that wasn't there before; null: there is none, or all are known to be other tasks'. */
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
