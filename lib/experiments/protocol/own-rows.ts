import { setTimeout as sleep } from 'node:timers/promises';
import { listWords, now, shellWords } from '../../platform/index.ts';
import { type AttemptInfo, NO_PID, type Queue } from '../queue/index.ts';
import type { RowsOfTask } from '../results/index.ts';
import type { Values } from '../task/index.ts';

export interface OwnRowsOptions {
  queue: Pick<Queue, 'attempts'>;
  /** Reads the rows of the task's table, after those that are known to be others' were filled in; null: they aren't known here. */
  rowsOf: (taskId: string) => Promise<RowsOfTask | null>;
  /** Tells a person something. */
  tell: (message: string) => void;
}

/** How long reading a table may take: a worker waits for its answer. */
const READ_TIMEOUT_MS = 5_000;
/** A worker that writes its row completes its task at once: after so long, a row is not another worker's. */
const COMPLETION_TIMEOUT_MS = 2_000;
/** How often it is looked whether another worker completes its task. */
const INTERVAL_MS = 200;
/** How long that wait may take where this process gets too little time: workers wait ten seconds for an answer. */
const MAX_WAIT_MS = 6_000;
/** The result of a worker whose row can't be told from others. */
const UNKNOWN: Values = {};

/** An attempt that was given out by this process. */
interface Run {
  /** The rows that fitted the task before it began, and that are nobody's yet. null: they couldn't be read. */
  before: string[] | null;
  /** Its own row, until that is filled in. */
  found: string | null;
  /** Other attempts that may have written a row since then, by token: nobody knows yet which row. */
  readonly others: Map<string, { taskId: string; isCompleting: boolean }>;
  /** The names of tasks that got a row in the belief that this attempt hadn't written it. */
  readonly believed: string[];
}

/**
 * Finds the rows of workers that write them themselves and send no result. Where a row fits several tasks, which differ in the seed for
 * instance, it is this task's if it came while this one ran, as the only one. Such workers can lose each other's rows, so the only one may
 * be another worker's. It is known not to be once the others have told which rows are theirs. One that runs still is believed to have
 * written none if it doesn't complete its task for a while. Otherwise, rows are only counted. So they are where the process was started
 * again meanwhile, since it alone knows which rows were there before.
 */
export class OwnRows {
  readonly #options: OwnRowsOptions;
  readonly #runs = new Map<string, Run>();
  /** Completions whose row is being looked for, by token: a worker repeats its request if the answer takes long. */
  readonly #completing = new Map<string, Promise<Values | null>>();

  constructor(options: OwnRowsOptions) {
    this.#options = options;
  }

  /** To be called before the worker gets the task. */
  async begin({ token, taskId }: AttemptInfo): Promise<void> {
    for (const { others } of this.#runs.values()) others.set(token, { taskId, isCompleting: false });
    const run: Run = { before: null, found: null, others: new Map(), believed: [] };
    this.#runs.set(token, run);
    const living = await this.#options.queue.attempts('living').catch(() => null);
    if (living === null) return;
    for (const other of living) {
      // Whoever completes its task already has written its row.
      const hasWritten = this.#completing.has(other.token) || this.#runs.get(other.token)?.found != null;
      if (other.token !== token && other.worker.pid === NO_PID && !hasWritten)
        run.others.set(other.token, { taskId: other.taskId, isCompleting: false });
    }
    const rows = await this.#look(taskId);
    if (rows === null) return;
    const before = rows.shared.map(({ content }) => content);
    for (const { found } of this.#runs.values()) if (found !== null) removeFirst(before, found);
    run.before = before;
  }

  end(token: string): void {
    this.#runs.delete(token);
  }

  /** Notes that it is known which row an attempt has written, if any: those that others look for are not its own. */
  noteKnown(token: string): void {
    for (const { others } of this.#runs.values()) others.delete(token);
  }

  /** Finds the result that the worker has written; null: it has written none, as far as can be seen. */
  async resultOf(attempt: AttemptInfo, isLocal: boolean): Promise<Values | null> {
    const { token } = attempt;
    for (const { others } of this.#runs.values()) {
      const other = others.get(token);
      if (other !== undefined) other.isCompleting = true;
    }
    const already = this.#completing.get(token);
    if (already !== undefined) return already;
    const result = this.#find(attempt, isLocal);
    this.#completing.set(token, result);
    try {
      return await result;
    } finally {
      this.#completing.delete(token);
    }
  }

  async #find(attempt: AttemptInfo, isLocal: boolean): Promise<Values | null> {
    const rows = await this.#look(attempt.taskId);
    if (rows === null) return null;
    const result = rows.own ?? (await this.#onlyNew(attempt, rows, isLocal));
    if (result === null) this.#tellOfDoubt(attempt);
    else if (result !== UNKNOWN) this.noteKnown(attempt.token);
    return result;
  }

  /** Finds the result in the only row that came while the task ran. */
  async #onlyNew(
    { token, taskId, taskName }: AttemptInfo,
    rows: RowsOfTask,
    isLocal: boolean,
  ): Promise<Values | null> {
    const run = this.#runs.get(token);
    if (run === undefined || run.before === null) return rows.spare > 0 ? UNKNOWN : null;
    const row = newest(rows, run.before);
    if (row === null) return null;
    if (row === 'several' || !isLocal) return UNKNOWN;
    const rival = await this.#rivalOf(run, rows);
    if (rival === 'wrote') return UNKNOWN;
    if (rival === null) return this.#claim(run, row);
    // Another worker may have written this row, over ours: then it says so now.
    if (!(await this.#outlast(run, rows))) return UNKNOWN;
    const later = await this.#look(taskId);
    const again = later && newest(later, run.before);
    if (later === null || again === null) return null;
    const isSame = again !== 'several' && again.content === row.content;
    if (!isSame || (await this.#rivalOf(run, later)) === 'wrote') return UNKNOWN;
    for (const [other, { taskId: rival }] of run.others) {
      if (rows.rivals.has(rival)) this.#runs.get(other)?.believed.push(taskName);
    }
    return this.#claim(run, row);
  }

  /** Notes that a row is a run's. Others that have seen it before they began may write an equal one. */
  #claim(run: Run, { content, result }: Row): Values {
    run.found = content;
    const before = count(run.before, content);
    for (const other of this.#runs.values()) {
      if (other !== run && count(other.before, content) > before) removeFirst(other.before, content);
    }
    return result;
  }

  /** Its row is missing: perhaps it was slower than others believed. */
  #tellOfDoubt({ token, taskName }: AttemptInfo): void {
    const believed = this.#runs.get(token)?.believed ?? [];
    if (believed.length === 0) return;
    const rows = believed.length === 1 ? 'A row written while it ran was' : 'Rows written while it ran were';
    this.#options.tell(
      `warning: ${taskName} completed, but no row of the table could be assigned to it. ${rows} assigned to ${listWords(believed)}, perhaps with a wrong seed. To run them again: gpu-owner exp retry ${shellWords([taskName, ...believed])}`,
    );
  }

  /** Says what others do whose row it may be: one may have written it already, or one runs still. null: there is none. */
  async #rivalOf(run: Run, { rivals }: RowsOfTask): Promise<'wrote' | 'runs' | null> {
    const living = (await this.#options.queue.attempts('living')).filter(({ taskId }) => rivals.has(taskId));
    const tokens = new Set(living.map(({ token }) => token));
    for (const [token, { taskId, isCompleting }] of run.others) {
      if (rivals.has(taskId) && (isCompleting || !tokens.has(token))) return 'wrote';
    }
    return living.length > 0 ? 'runs' : null;
  }

  /**
   * Waits for others to complete their tasks. Intervals are counted, and not the time alone: in one in which this process stood still, it
   * has heard of nothing. @returns false: one does, or it takes too long
   */
  async #outlast({ others }: Run, { rivals }: RowsOfTask): Promise<boolean> {
    const end = now() + MAX_WAIT_MS;
    for (let waited = 0; waited < COMPLETION_TIMEOUT_MS; waited += INTERVAL_MS) {
      await sleep(INTERVAL_MS);
      if (now() > end) return false;
      for (const { taskId, isCompleting } of others.values())
        if (isCompleting && rivals.has(taskId)) return false;
    }
    return true;
  }

  async #look(taskId: string): Promise<RowsOfTask | null> {
    const late = new AbortController();
    const timeout = sleep(READ_TIMEOUT_MS, null, { signal: late.signal }).catch(() => null);
    try {
      return await Promise.race([this.#options.rowsOf(taskId), timeout]);
    } catch {
      return null; // the manager says what is wrong with the tables
    } finally {
      late.abort();
    }
  }
}

type Row = RowsOfTask['shared'][number];

function count(rows: readonly string[] | null, content: string): number {
  return rows?.filter((each) => each === content).length ?? 0;
}

/** @returns whether there was one */
function removeFirst(rows: string[] | null, content: string): boolean {
  const at = rows?.indexOf(content) ?? -1;
  if (at !== -1) rows?.splice(at, 1);
  return at !== -1;
}

/** Finds the row that wasn't there before; null: there is none, or all are known to be other tasks'. */
function newest({ shared, spare }: RowsOfTask, before: readonly string[]): Row | 'several' | null {
  const left = [...before];
  const news = shared.filter(({ content }) => !removeFirst(left, content));
  if (news.length === 0 || spare === 0) return null;
  return news.length === 1 && news[0] !== undefined ? news[0] : 'several';
}
