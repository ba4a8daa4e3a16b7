import { createHash } from 'node:crypto';
import { listWords, sanitize, shellWords } from '../../platform/index.ts';
import { UnsafePathError } from '../project/index.ts';
import type { Values } from '../task/index.ts';
import { contentOf, NAME_COLUMN, resultOf } from './cell-value.ts';
import { type CSVRow, MalformedCSVError } from './csv.ts';
import { RowMatcher, TaskIndex } from './row-matcher.ts';
import {
  codeOf,
  FileBusyError,
  FileChangedError,
  FileRefusedError,
  type Fingerprint,
  readFingerprint,
  removeLeftover,
  type TableFile,
  waitUntilUnchanged,
} from './safe-file.ts';
import { RowReader, readTable, SharedRows, type TableContents } from './table-reader.ts';

/** The tasks of a table, which are numbers to it. */
export interface Tasks {
  nameOf(task: number): string;
  isCompleted(task: number): boolean;
  /** Whether a task may be writing its row now, or may have written one that nobody has looked for as yet. */
  readonly mayWrite: boolean;
  /** @returns for each whether it counts now */
  importResults(rows: readonly { task: number; result: Values }[]): Promise<boolean[]>;
}

/** One final_results.csv, as it was when it was last looked at. */
export class Table {
  readonly file: TableFile;
  /** For people. */
  readonly shown: string;
  readonly index = new TaskIndex();
  /** The tasks that have a row. */
  rows = new Set<number>();
  /** Completed ones that have none. */
  readonly waiting = new Set<number>();
  /** Those of them that had one, as far as can be told. */
  readonly lost = new Set<number>();
  /** Rows of tasks that are running: if they fail, the row counts. */
  readonly undecided = new Map<number, Values>();
  shared = new SharedRows();
  /** Rows with more cells than there are columns, by the tasks that they name. */
  readonly overlong = new Map<number, CSVRow[]>();
  /** null: there is no file, or it can't be used. */
  contents: TableContents | null = null;
  /** The reasons why it can't be read, or written to; both for people. */
  unreadable: string | null = null;
  unwritable: string | null = null;
  /** Whether it can't be written because of what it has: a person has to correct it. */
  needsCorrection = false;
  /** The keys of what was told about writing to it. */
  readonly told = new Set<string>();
  private unknownRows: string | null = null;
  /** As of the last reading: see `RowMatcher`. */
  private filledByOthers = new Set<string>();
  /** undefined: has to be read. null: there is nothing. */
  fingerprint: Fingerprint | null | undefined = undefined;
  private readonly problems: Problems;
  private readonly tasks: Tasks;

  constructor(file: TableFile, shown: string, tasks: Tasks, problems: Problems) {
    this.file = file;
    this.shown = sanitize(shown, 500);
    this.tasks = tasks;
    this.problems = problems;
  }

  get path(): string {
    return this.file.path;
  }

  /** For lists of problems. */
  get troubles(): string[] {
    return [this.unreadable, this.unwritable, this.unknownRows].filter((text) => text !== null);
  }

  /** Has to be read again. */
  forget(): void {
    this.fingerprint = undefined;
  }

  /** After writing: what was written is known, and isn't read again. */
  written(contents: TableContents): void {
    this.contents = contents;
    this.fingerprint = contents.fingerprint;
  }

  /** At the start: completed tasks without a row have lost it, as far as can be told. */
  noteLost(): void {
    for (const task of this.index.names.values()) {
      if (this.rows.has(task) || !this.tasks.isCompleted(task)) continue;
      this.waiting.add(task);
      this.lost.add(task);
    }
  }

  /** Reads it, if anybody has changed it. @returns how many rows were imported @throws FileChangedError, FileBusyError */
  async refresh({ leftovers = true } = {}): Promise<number> {
    let fingerprint: Fingerprint | null | undefined;
    try {
      fingerprint = await readFingerprint(this.file);
      if (fingerprint === this.fingerprint) return 0;
      if (leftovers && this.fingerprint === undefined) await removeLeftover(this.file);
      const imported = await this.read(fingerprint);
      if (this.unreadable !== null) this.problems.over(`${this.shown} unreadable`);
      this.unreadable = null;
      return imported;
    } catch (error) {
      if (error instanceof FileBusyError) throw error;
      if (error instanceof FileChangedError || codeOf(error) === 'ENOENT') throw new FileChangedError();
      this.refuse(error, fingerprint);
      return 0;
    }
  }

  private refuse(error: unknown, fingerprint: Fingerprint | null | undefined): void {
    const where = error instanceof MalformedCSVError ? `${this.shown}:${error.line}` : this.shown;
    const isContent =
      error instanceof MalformedCSVError ||
      error instanceof FileRefusedError ||
      error instanceof UnsafePathError;
    if (!isContent && codeOf(error) === undefined) throw error;
    this.contents = null;
    // Permissions of directories can change without a trace in the file.
    this.fingerprint = isContent ? fingerprint : undefined;
    this.unreadable = `${where}: ${sanitize(isContent ? error.message : explain(error), 500)}`;
    this.problems.unusable(`${this.shown} unreadable`, this.unreadable);
  }

  private async read(fingerprint: Fingerprint | null): Promise<number> {
    const rows = new Map<number, number>();
    const problems = this.problems.ofRows(this.shown);
    let imported = 0;
    let contents: TableContents | null = null;
    const { covered } = this.shared;
    this.shared = new SharedRows();
    this.undecided.clear();
    this.overlong.clear();
    this.filledByOthers = new Set();
    if (fingerprint !== null) {
      await waitUntilUnchanged(this.file);
      let header: readonly string[] = [];
      let reader: RowReader | null = null;
      const loose: CSVRow[] = [];
      contents = await readTable(
        this.file,
        async (names) => {
          header = names;
          reader = await this.readerOf(header);
        },
        async (batch) => {
          if (reader !== null) imported += await this.readBatch(header, reader, batch, rows, problems, loose);
        },
      );
      if (reader !== null) imported += await this.readLoose(contents, reader, loose, rows, problems);
    }
    this.unknownRows = problems.end();
    this.unwritable = null;
    this.needsCorrection = false;
    this.contents = contents;
    this.fingerprint = contents?.fingerprint ?? null;
    const all = new Set(rows.keys());
    for (const task of covered) if (!all.has(task) && this.shared.cover(task)) all.add(task);
    this.settleRows(all);
    return imported;
  }

  /** One of the rows that fit the task and others is its own. @returns false: there is none left */
  cover(task: number): boolean {
    if (!this.shared.cover(task)) return false;
    this.rows.add(task);
    this.waiting.delete(task);
    this.lost.delete(task);
    return true;
  }

  /** Rows that fit several tasks, none of which can have written them. @param allowed so many may be tasks' that run */
  tellShared(allowed: number): void {
    if (this.fingerprint === undefined) return;
    const problems = this.problems.ofRows(this.shown);
    for (const { rows } of this.shared.spare) {
      if (rows.length <= allowed) continue;
      for (const { line, cells, why } of rows) problems.add(line, cells, why);
    }
    this.unknownRows ??= problems.end();
  }

  /** For a header of this table. @throws FileRefusedError if nothing in it is known */
  async readerOf(header: readonly string[]): Promise<RowReader> {
    const matcher = await RowMatcher.make(this.index, header, this.filledByOthers, (task) =>
      this.tasks.isCompleted(task),
    );
    if (!matcher.usable && !this.index.isEmpty) {
      const other = header.length === 1 && /[;\t]/.exec(header[0] as string)?.[0];
      if (other) {
        const name = other === ';' ? 'semicolons' : 'tabs';
        throw new MalformedCSVError(1, `its columns are separated by ${name}: save it with commas`);
      }
      throw new MalformedCSVError(
        1,
        `no column is '${NAME_COLUMN}' or a parameter (${[...this.index.columns.keys()].slice(0, 5).join(', ')}): the first line must name the columns`,
      );
    }
    return new RowReader(matcher, this.index, header, (task) => this.tasks.nameOf(task));
  }

  /** Reads the rows that fit a task loosely, when all others are known: those win. */
  private async readLoose(
    { header, partialLine }: TableContents,
    reader: RowReader,
    loose: readonly CSVRow[],
    rows: Map<number, number>,
    problems: RowProblems,
  ): Promise<number> {
    if (loose.length === 0) return 0;
    // A complete last row without a line break is taken later, and wins as well.
    const last = partialLine?.row;
    const { owner, isLoose } = last && !last.open ? reader.read(last) : { owner: null, isLoose: true };
    const isReserved = owner !== null && !isLoose && !rows.has(owner);
    if (isReserved) rows.set(owner, last?.line ?? 0);
    let imported = 0;
    for (let at = 0; at < loose.length; at += MAX_IMPORTED)
      imported += await this.readBatch(header, reader, loose.slice(at, at + MAX_IMPORTED), rows, problems);
    if (isReserved) rows.delete(owner);
    return imported;
  }

  /** @param loose gets the rows that fit a task loosely; undefined: they count */
  private async readBatch(
    header: readonly string[],
    reader: RowReader,
    batch: readonly CSVRow[],
    rows: Map<number, number>,
    problems: RowProblems,
    loose?: CSVRow[],
  ): Promise<number> {
    const found: { task: number; result: Values }[] = [];
    for (const row of batch) {
      const { owner, certain, isLoose, shared, why } = reader.read(row);
      if (isLoose && loose !== undefined && !(owner !== null && rows.has(owner))) {
        loose.push(row);
        continue;
      }
      if (row.cells.length > header.length) this.noteOverlong(row);
      if (shared !== null) {
        const { line, cells } = row;
        const result = resultOf(header, cells, this.index.columns);
        const isKept = this.shared.add(shared, { line, cells, result, content: contentOf(result), why });
        if (isKept && this.tasks.mayWrite) continue;
      }
      const first = owner === null ? undefined : rows.get(owner);
      if (owner !== null && first === undefined) rows.set(owner, row.line);
      if (owner === null || !certain) problems.add(row.line, row.cells, why);
      else if (first !== undefined) {
        const name = this.tasks.nameOf(owner);
        problems.add(
          row.line,
          row.cells,
          () => `task ${name} already has a row${first ? ` (line ${first})` : ''}; that one counts.`,
        );
      } else if (!this.tasks.isCompleted(owner)) {
        found.push({ task: owner, result: resultOf(header, row.cells, this.index.columns) });
      }
    }
    return this.importResults(found);
  }

  private noteOverlong(row: CSVRow): void {
    for (const cell of row.cells) {
      const task = this.index.names.get(cell);
      if (task === undefined) continue;
      const rows = this.overlong.get(task);
      if (rows === undefined) this.overlong.set(task, [row]);
      else rows.push(row);
    }
  }

  private async importResults(found: readonly { task: number; result: Values }[]): Promise<number> {
    if (found.length === 0) return 0;
    const imported = await this.tasks.importResults(found);
    for (const [at, { task, result }] of found.entries()) {
      if (imported[at]) this.undecided.delete(task);
      else this.undecided.set(task, result);
    }
    return imported.filter(Boolean).length;
  }

  /** Rows of tasks that ran when they were read, and perhaps have failed since. */
  async importUndecided(): Promise<number> {
    for (const task of this.undecided.keys()) if (this.tasks.isCompleted(task)) this.undecided.delete(task);
    return this.importResults([...this.undecided].map(([task, result]) => ({ task, result })));
  }

  /** The row without a line break at the end, which turned out to be complete. */
  async take(row: CSVRow): Promise<number> {
    const { header } = this.contents as TableContents;
    const rows = new Map([...this.rows].map((task) => [task, 0]));
    const problems = this.problems.ofRows(this.shown);
    const imported = await this.readBatch(header, await this.readerOf(header), [row], rows, problems);
    this.settleRows(new Set(rows.keys()));
    return imported;
  }

  private settleRows(rows: Set<number>): void {
    for (const task of this.rows) {
      if (rows.has(task) || !this.tasks.isCompleted(task)) continue;
      this.lost.add(task);
      this.waiting.add(task);
    }
    for (const task of rows) {
      this.waiting.delete(task);
      this.lost.delete(task);
    }
    this.rows = rows;
  }
}

/** Rows that are imported at a time. */
const MAX_IMPORTED = 1_000;

/** Errors of the system that people meet, in words. */
export function explain(error: unknown): string {
  switch (codeOf(error)) {
    case 'ENOSPC':
      return 'the disk is full: make room';
    case 'EDQUOT':
      return 'your quota is used up: make room';
    case 'EROFS':
      return 'its file system is read-only: mount it for writing';
    case 'EACCES':
    case 'EPERM':
      return 'permission denied: chmod or chown it';
    case 'ENOTDIR':
    case 'EEXIST':
      return 'there is a file in place of its directory: move that file away';
    default:
      return error instanceof Error ? error.message : String(error);
  }
}

/** So many rows of a table are named at a time. */
const MAX_ROWS = 5;
const MAX_NAMES = 3;
const MAX_REMEMBERED = 50_000;
const NOT_WRITTEN = 'nothing is written to it; the results are kept in the queue';

/** Says to people what is wrong with tables: everything once, and not too much. */
export class Problems {
  private readonly tell: (message: string) => void;
  private readonly consequence: string;
  private readonly told = new Set<string>();

  /** @param consequence what a table that can't be used means: ends the sentences about it */
  constructor(tell: (message: string) => void, consequence = NOT_WRITTEN) {
    this.tell = tell;
    this.consequence = consequence;
  }

  /** A table can't be read or written. */
  unusable(key: string, message: string): void {
    this.once(key, `${message}. Until you correct the file or move it away, ${this.consequence}.`);
  }

  /** @param key what it is about: the message may differ each time */
  once(key: string, message: string): void {
    if (this.told.has(key)) return;
    if (this.told.size >= MAX_REMEMBERED) this.told.clear();
    this.told.add(key);
    this.tell(message);
  }

  /** The problem is over: when it comes again, it is news. */
  over(key: string): void {
    this.told.delete(key);
  }

  /** Rows that a table had lost are there again. */
  restored(table: string, names: readonly string[]): void {
    const named = names.slice(0, MAX_NAMES);
    const more = names.length > MAX_NAMES ? [`${names.length - MAX_NAMES} more`] : [];
    const [rows, was, them] = names.length === 1 ? ['row', 'was', 'it'] : ['rows', 'were', 'one of them'];
    this.tell(
      `${table}: the ${rows} of ${listWords([...named, ...more])}, completed earlier, ${was} missing and ` +
        `${was} restored from the queue. To run ${them} again instead: gpu-owner exp retry ${shellWords(named.slice(0, 1))}`,
    );
  }

  /** Collects what is wrong with rows of a table, while it is read once. */
  ofRows(table: string): RowProblems {
    return new RowProblems(this, table);
  }
}

class RowProblems {
  private readonly problems: Problems;
  private readonly table: string;
  count = 0;

  constructor(problems: Problems, table: string) {
    this.problems = problems;
    this.table = table;
  }

  /** @param why is only asked for the rows that are named */
  add(line: number, cells: readonly string[], why: () => string): void {
    if (this.count++ >= MAX_ROWS) return;
    const content = createHash('sha256').update(JSON.stringify(cells)).digest('base64');
    this.problems.once(`${this.table}\n${content}`, `${this.table}:${line}: ${why()}`);
  }

  /** @returns in short, for lists of problems; null: nothing */
  end(): string | null {
    const { count, table } = this;
    if (count === 0) return null;
    const text = `${table}: ${count} ${count === 1 ? 'row is' : 'rows are'} not the result of a task`;
    if (count > MAX_ROWS)
      this.problems.once(`${table}\n${count} rows`, `${text}; the first are named above.`);
    return text;
  }
}
