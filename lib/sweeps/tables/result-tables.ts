import { errorCode, ifFailed } from '../../errors.ts';
import { UnsafePathError } from '../project/index.ts';
import { completionsAfter, type Queue } from '../queue/index.ts';
import type { Values } from '../task/index.ts';
import { KnownTasks } from './known-tasks.ts';
import { explain, type Problems } from './problems.ts';
import type { PendingRow, Table } from './table.ts';
import { FileBusyError, FileChangedError, sync } from './table-file.ts';
import { drop, UnwritableError, whyNothingCanBeWritten, write } from './table-writer.ts';

/** A table that can't be used as it is. */
export interface UnusableTable {
  path: string;
  /** For people. */
  why: string;
  /** How many rows are still to be written to it. */
  missing: number;
}

/** Tries at a time for a table that another process changes. */
const MAX_TRIES = 5;

function unusable(tables: readonly Table[], whyNot: (table: Table) => string | null): UnusableTable[] {
  return tables.flatMap((table) => {
    const why = whyNot(table);
    return why === null ? [] : [{ path: table.path, why, missing: missingIn([table]) }];
  });
}

function missingIn(tables: readonly Table[]): number {
  return tables.reduce((sum, { waiting }) => sum + waiting.size, 0);
}

/**
 * Keeps the table of every output directory (`final_results.csv`) and the queue in step: rows of others complete tasks, completed
 * tasks get rows, never two in one table. Only one process may do so at a time: who holds `queue.manage()`.
 */
export class ResultTables {
  private readonly queue: Queue;
  private readonly tell: (message: string) => void;
  private readonly problems: Problems;
  private readonly tasks: KnownTasks;
  private cursor = 0;
  private known = -1;
  private started = false;
  /** Left alone until the next sync. */
  private readonly busy = new Set<Table>();
  /** Tables with rows that may not be on the disk yet. The queue has them as well. */
  private readonly written = new Set<Table>();
  private running: Promise<unknown> = Promise.resolve();
  /** A look that hasn't begun: all who ask for one join it. */
  private upcoming: Promise<void> | null = null;

  /**
   * @param project the directory that relative output directories are in
   * @param tell gets what people should know, once
   */
  constructor(queue: Queue, project: string, tell: (message: string) => void) {
    this.queue = queue;
    this.tell = tell;
    this.tasks = new KnownTasks(queue, project, tell);
    this.problems = this.tasks.problems;
  }

  /**
   * Looks at the tables and the queue, and writes what is missing. Costs a look per table if nothing has changed. Rows that
   * can't be written now are tried again each time.
   * @throws ERR_QUEUE. Never because of tables: see {@link tableState}.
   */
  sync(): Promise<void> {
    if (this.upcoming !== null) return this.upcoming;
    const next = this.inTurn(() => {
      this.upcoming = null;
      return this.syncNow();
    });
    this.upcoming = next;
    return next;
  }

  private inTurn<T>(act: () => Promise<T>): Promise<T> {
    const next = this.running.then(act);
    this.running = next.catch(() => {}); // the caller has the error
    return next;
  }

  /** Finds the result that the row of a running task has, as of now; null: its table has no row of it. @throws ERR_QUEUE */
  async resultOf(id: string): Promise<Values | null> {
    await this.sync();
    const task = this.tasks.numberOf(id);
    if (task === undefined) return null;
    return this.tasks.tablesOf(task)[0]?.undecided.get(task) ?? null;
  }

  /**
   * The next `sync` reads all tasks and completions: some may have got new destinations, and a Redis that has lost its last seconds gives
   * the numbers of completions once more.
   */
  rereadQueue(): void {
    this.known = -1;
    this.cursor = 0;
  }

  /**
   * As of the last look: what keeps tables from being read (which of their tasks are completed isn't known then), what a person has to
   * correct in those that can be read before rows can be written, how many rows are still to be written, and all tables as people are
   * shown them.
   */
  get tableState(): {
    unreadable: UnusableTable[];
    unwritable: UnusableTable[];
    missing: number;
    tables: { path: string; shown: string }[];
  } {
    const tables = [...this.tasks.tables.values()];
    return {
      unreadable: unusable(tables, ({ unreadable }) => unreadable),
      unwritable: unusable(tables, (table) =>
        table.unwritable?.needsCorrection ? table.unwritable.why : whyNothingCanBeWritten(table),
      ),
      missing: missingIn(tables),
      tables: tables.map(({ path, shown }) => ({ path, shown })),
    };
  }

  /** Waits for what is going on, until it is on the disk. Results that are not in the tables by then stay in the queue. */
  async close(): Promise<void> {
    await this.running;
    for (const { path } of this.written) await sync(path).catch(ifFailed(undefined)); // a lost row is restored
  }

  private async syncNow(): Promise<void> {
    const counts = await this.queue.counts();
    const known = Object.values(counts).reduce((sum, count) => sum + count, 0);
    if (known !== this.known) {
      await this.tasks.load();
      this.known = known;
    }
    for (const table of this.tasks.tables.values()) {
      if (table.contents?.tail === 'cut') table.forget(); // more may be known by now
      await this.attempt(table, () => table.importUndecided());
    }
    if (!this.started) {
      for (const table of this.tasks.tables.values()) table.noteLost();
      // As many at least were completed before the tasks were read: their results needn't be.
      this.cursor = counts.completed;
      this.started = true;
    }
    await this.takeOutRetracted();
    await this.readCommon();
    await this.takeCompletions();
    for (const table of this.tasks.tables.values()) await this.writeWaiting(table);
    this.busy.clear();
  }

  /** Reads the common table. Rows there complete tasks, which get rows in their own tables then. */
  private async readCommon(): Promise<void> {
    const { common } = this.tasks;
    if (common === null) return;
    const before = this.tasks.completedCount;
    await this.attempt(common, () => common.importUndecided());
    const found = this.tasks.completedCount - before;
    if (found === 0) return;
    this.tell(
      `${common.shown} has rows of ${found} ${found === 1 ? 'task' : 'tasks'}, which count as completed. To run one again, delete its row there, then: gpu-owner exp retry NAME`,
    );
  }

  /** Does something with a table as it is now. @returns whether it could be done */
  private async attempt(table: Table, act: () => Promise<void>): Promise<boolean> {
    for (let tries = 0; tries < MAX_TRIES && !this.busy.has(table); tries++) {
      try {
        await table.refresh();
        if (table.unreadable !== null) return false;
        await act();
        return true;
      } catch (error) {
        // A file that went away meanwhile is looked for again; then its absence is an error.
        const isGone = errorCode(error) === 'ENOENT' && tries < MAX_TRIES - 1;
        if (error instanceof FileChangedError || isGone) table.forget();
        else if (error instanceof FileBusyError) this.busy.add(table);
        else {
          this.refuse(table, error);
          return false;
        }
      }
    }
    this.busy.add(table);
    const why = `${table.shown}: another process keeps changing this file; nothing is written to it until that ends`;
    table.unwritable = { why, needsCorrection: false };
    return false;
  }

  private refuse(table: Table, error: unknown): void {
    const isKnown = error instanceof UnwritableError || error instanceof UnsafePathError;
    if (!isKnown && errorCode(error) === undefined) throw error;
    const why = isKnown ? error.message : `${table.shown}: ${explain(error)}`;
    table.unwritable = { why, needsCorrection: error instanceof UnwritableError };
    const key = `${table.shown}\n${why}`;
    table.reportedProblems.add(key);
    this.problems.unusable(key, why);
  }

  private succeeded(table: Table): void {
    table.unwritable = null;
    for (const key of table.reportedProblems) this.problems.markResolved(key);
    table.reportedProblems.clear();
    this.written.add(table);
  }

  private async takeOutRetracted(): Promise<void> {
    const retracted = await this.queue.retracted();
    if (retracted.length === 0) return;
    const numbers = new Set(retracted.map((task) => this.tasks.add(task)));
    const tables = new Set<Table>();
    for (const number of numbers) {
      await this.tasks.retract(number);
      for (const table of this.tasks.tablesOf(number)) tables.add(table);
    }
    const failed = new Set<Table>();
    for (const table of tables) {
      const done = await this.attempt(table, async () => {
        const rows = new Set([...numbers].filter((number) => table.rows.has(number)));
        if (rows.size === 0) return;
        await drop(table, rows);
        // Completed once more already: then its new row is still to come.
        for (const number of rows) if (this.tasks.isCompleted(number)) table.waiting.add(number);
        this.succeeded(table);
      });
      if (!done) failed.add(table);
    }
    const out = [...numbers].filter(
      (number) => !this.tasks.tablesOf(number).some((table) => failed.has(table)),
    );
    const ids = new Set(out);
    await this.queue.forgetRetracted(
      retracted.filter(({ id }) => ids.has(this.tasks.numberOf(id) as number)).map(({ id }) => id),
    );
  }

  /** Notes the tasks that were completed since the last time: their rows are to be written. */
  private async takeCompletions(): Promise<void> {
    for await (const { task, sequence } of completionsAfter(this.queue, this.cursor)) {
      const number = this.tasks.add(task);
      this.tasks.complete(number, sequence);
      this.cursor = sequence;
      for (const table of this.tasks.tablesOf(number)) if (!table.rows.has(number)) table.waiting.add(number);
    }
  }

  private async writeWaiting(table: Table): Promise<void> {
    if (table.unreadable !== null) return;
    for (let tries = 0; tries < MAX_TRIES && table.waiting.size > 0; tries++) {
      let isDone = true;
      for await (const entries of this.tasks.results([...table.waiting])) {
        isDone = await this.writeEntries(table, entries);
        if (!isDone) break;
      }
      if (isDone || table.unwritable !== null) return;
    }
  }

  private async writeEntries(table: Table, entries: readonly PendingRow[]): Promise<boolean> {
    return this.attempt(table, async () => {
      const missing = entries.filter(({ task }) => table.waiting.has(task));
      if (missing.length === 0) return;
      const lost = missing.map(({ task }) => task).filter((task) => table.lost.has(task));
      try {
        await write(table, missing);
      } finally {
        // Also of what was written before something went wrong.
        const written = lost.filter((task) => !table.waiting.has(task));
        const names = written.map((task) => this.tasks.nameOf(task));
        if (names.length > 0) this.problems.restored(table.shown, names);
      }
      this.succeeded(table);
    });
  }
}
