import { setTimeout as sleep } from 'node:timers/promises';
import { now } from '../../platform/index.ts';
import { type AttemptInfo, NO_PID, type Queue } from '../queue/index.ts';
import type { RowsOfTask } from '../results/index.ts';
import type { Values } from '../task/index.ts';

export interface OwnRowsOptions {
  queue: Pick<Queue, 'attempts'>;
  /** Reads the rows of the task's table, after those that are known to be others' were filled in; null: they aren't known here. */
  rowsOf: (taskId: string) => Promise<RowsOfTask | null>;
}

/** A worker that writes its row completes its task at once: after so long, a row is not another worker's. */
const COMPLETION_TIMEOUT_MS = 2_000;
const INTERVAL_MS = 200;
/** How long that, and reading a table, may take on a busy machine: workers wait ten seconds for an answer. */
const MAX_WAIT_MS = 6_000;
const READ_TIMEOUT_MS = 5_000;
/** The result of a worker whose row can't be told from others. */
const UNKNOWN: Values = {};

type Row = RowsOfTask['unassigned'][number];

/** An attempt that was given out by this process. */
interface Run {
  /** The contents of unassigned rows that fitted the task before it began; null: they couldn't be read. */
  before: string[] | null;
  /** Attempts that may have written a row since then, by token, and their tasks. */
  readonly candidates: Map<string, string>;
  /** The content of its own row, which is assigned soon. */
  found: string | null;
}

/**
 * Finds the rows of workers that write them themselves and send no result. A row that fits several tasks, which differ in the seed for
 * instance, is a task's if it is the only one that came while the task ran, and no other attempt can have written it: a running attempt
 * hasn't if it doesn't complete its task within two seconds. Otherwise rows are only counted, as after a restart of this process.
 */
export class OwnRows {
  readonly #options: OwnRowsOptions;
  readonly #runs = new Map<string, Run>();
  /** Attempts that complete their tasks. */
  readonly #completing = new Set<string>();

  constructor(options: OwnRowsOptions) {
    this.#options = options;
  }

  /** To be called before the worker gets the task. */
  async begin({ token, taskId }: AttemptInfo): Promise<void> {
    for (const { candidates } of this.#runs.values()) candidates.set(token, taskId);
    const run: Run = { before: null, candidates: new Map(), found: null };
    this.#runs.set(token, run);
    const living = await this.#options.queue.attempts('living').catch(() => null);
    if (living === null) return;
    for (const { worker, ...other } of living) {
      const hasWritten = other.token === token || this.#completing.has(other.token);
      if (worker.pid === NO_PID && !hasWritten) run.candidates.set(other.token, other.taskId);
    }
    const before = (await this.#read(taskId))?.unassigned.map(({ content }) => content) ?? null;
    for (const { found } of this.#runs.values()) removeFirst(before, found);
    run.before = before;
  }

  end(token: string): void {
    this.#runs.delete(token);
    this.#completing.delete(token);
  }

  /** Notes that it is known which row an attempt has written, if any. */
  excludeAsCandidate(token: string): void {
    for (const { candidates } of this.#runs.values()) candidates.delete(token);
  }

  /** Finds the result that the worker has written; null: it has written none, as far as can be seen. */
  async resultOf({ token, taskId }: AttemptInfo, isLocal: boolean): Promise<Values | null> {
    this.#completing.add(token);
    const rows = await this.#read(taskId);
    const result = rows && (rows.own ?? (await this.#onlyNew(this.#runs.get(token), taskId, rows, isLocal)));
    if (result !== null && result !== UNKNOWN) this.excludeAsCandidate(token);
    return result;
  }

  async #onlyNew(
    run: Run | undefined,
    taskId: string,
    rows: RowsOfTask,
    isLocal: boolean,
  ): Promise<Values | null> {
    if (!run?.before) return rows.left > 0 ? UNKNOWN : null;
    const row = newest(rows, run.before);
    if (row === null) return null;
    if (row === 'several' || !isLocal || !(await this.#waitForCompetitors(run, rows))) return UNKNOWN;
    const later = await this.#read(taskId);
    const again = later && newest(later, run.before);
    if (later === null || again === null) return null;
    const isSame = again !== 'several' && again.content === row.content;
    if (!isSame || (await this.#competitorsOf(run, later)) === 'wrote') return UNKNOWN;
    run.found = row.content;
    // An equal row that another task writes from now on is new to that one.
    const seen = count(run.before, row.content);
    for (const { before } of this.#runs.values())
      if (count(before, row.content) > seen) removeFirst(before, row.content);
    return row.result;
  }

  /** @returns false: one may have written the row. Intervals are counted: while this process stands still, it hears of nothing. */
  async #waitForCompetitors(run: Run, rows: RowsOfTask): Promise<boolean> {
    const end = now() + MAX_WAIT_MS;
    for (let waited = 0; waited <= COMPLETION_TIMEOUT_MS; waited += INTERVAL_MS) {
      const competitors = await this.#competitorsOf(run, rows);
      if (competitors === 'wrote' || now() > end) return false;
      if (competitors === 'none') break;
      await sleep(INTERVAL_MS);
    }
    return true;
  }

  /**
   * The state of other attempts whose row it may be. `wrote`: one may have written it, as it has ended, or completes its task.
   */
  async #competitorsOf(
    { candidates }: Run,
    { competingTaskIds }: RowsOfTask,
  ): Promise<'wrote' | 'run' | 'none'> {
    const living = new Set((await this.#options.queue.attempts('living')).map(({ token }) => token));
    const competing = [...candidates].filter(([, taskId]) => competingTaskIds.has(taskId));
    if (competing.some(([token]) => this.#completing.has(token) || !living.has(token))) return 'wrote';
    return competing.length > 0 ? 'run' : 'none';
  }

  /** The manager says what is wrong with a table that can't be read. */
  #read(taskId: string): Promise<RowsOfTask | null> {
    const timeout = sleep(READ_TIMEOUT_MS, null, { ref: false });
    return Promise.race([this.#options.rowsOf(taskId).catch(() => null), timeout]);
  }
}

function count(rows: readonly string[] | null, content: string): number {
  return rows?.filter((each) => each === content).length ?? 0;
}

function removeFirst(rows: string[] | null, content: string | null): void {
  const at = content === null ? -1 : (rows?.indexOf(content) ?? -1);
  if (at !== -1) rows?.splice(at, 1);
}

/** Finds the row that wasn't there before; null: there is none, or all are known to be other tasks'. */
function newest({ unassigned, left }: RowsOfTask, before: readonly string[]): Row | 'several' | null {
  const rest = [...before];
  const news = unassigned.filter(({ content }) => {
    const isNew = !rest.includes(content);
    removeFirst(rest, content);
    return isNew;
  });
  if (news.length === 0 || left === 0) return null;
  return news.length === 1 ? (news[0] as Row) : 'several';
}
