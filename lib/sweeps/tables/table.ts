import { errorCode } from '../../errors.ts';
import { csvLine, sanitize } from '../../platform/index.ts';
import { UnsafePathError } from '../project/index.ts';
import type { Completion } from '../queue/index.ts';
import type { Values } from '../task/index.ts';
import { cellsOf, NAME_COLUMN, resultOf } from './cell-value.ts';
import { type CSVRow, decode, MalformedCSVError, parseRows } from './csv.ts';
import { explain, type Problems, type RowProblems } from './problems.ts';
import { isTooWide, type Reading, RowMatcher, TaskIndex } from './row-matcher.ts';
import {
  FileBusyError,
  FileChangedError,
  FileRefusedError,
  type Fingerprint,
  readFingerprint,
  readTable,
  removeLeftover,
  type TableFile,
  waitUntilUnchanged,
} from './table-file.ts';

/** A row that is to be written. */
export interface PendingRow {
  task: number;
  completion: Completion;
}

/** The tasks of a table, which are numbers to it. */
export interface Tasks {
  nameOf(task: number): string;
  isCompleted(task: number): boolean;
  /** @returns for each whether it counts now */
  importResults(rows: readonly { task: number; result: Values }[]): Promise<boolean[]>;
  /** The results of those of the tasks that the queue has completed. */
  results(tasks: Iterable<number>): AsyncIterable<readonly PendingRow[]>;
  /** The parameters of some of the tasks. */
  parametersOf(tasks: Iterable<number>): Promise<ReadonlyMap<number, Values>>;
}

/** The state of a table's file after reading it. */
export interface TableContents {
  fingerprint: Fingerprint;
  /** Empty: the file has no text. */
  header: readonly string[];
  bom: boolean;
  newline: '\n' | '\r\n';
  /** A last line that isn't complete: `ours` is left out when the table is written, `cut` is another program's, or a person's. */
  tail: 'ours' | 'cut' | null;
  tailLine: number;
  /** No line break is at the end. */
  openEnd: boolean;
  /** The first row with values in more cells than the table has columns: no column can be added then. */
  tooWide: number | null;
}

/** The findings of a reading of the whole file so far. */
interface Found {
  /** Lines of rows by their tasks. */
  readonly rows: Map<number, number>;
  readonly problems: RowProblems;
  results: { task: number; result: Values }[];
}

/** Rows that are imported at a time; then other things get their turn. */
const MAX_IMPORTED = 1_000;

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
  /** Waiting tasks that had a row, as far as can be told. */
  readonly lost = new Set<number>();
  /** Rows of tasks that are running: if they fail, the row counts. */
  readonly undecided = new Map<number, Values>();
  /** null: there is no file, or it can't be used. */
  contents: TableContents | null = null;
  /** The reasons why it can't be read, or written to; both for people. */
  unreadable: string | null = null;
  /** `needsCorrection`: because of the table's content, which a person has to correct. */
  unwritable: { why: string; needsCorrection: boolean } | null = null;
  /** The keys of what was told about writing to it. */
  readonly reportedProblems = new Set<string>();
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

  /** Has to be read again. */
  forget(): void {
    this.fingerprint = undefined;
  }

  /** After writing: what was written is known, and isn't read again. */
  written(contents: TableContents): void {
    this.contents = contents;
    this.fingerprint = contents.fingerprint;
  }

  noteWritten(entries: readonly PendingRow[]): void {
    for (const { task } of entries) this.noteRow(task);
  }

  private noteRow(task: number): void {
    this.rows.add(task);
    this.waiting.delete(task);
    this.lost.delete(task);
  }

  /** At the start: completed tasks without a row have lost it, as far as can be told. */
  noteLost(): void {
    for (const task of this.index.names.values()) {
      if (this.rows.has(task) || !this.tasks.isCompleted(task)) continue;
      this.waiting.add(task);
      this.lost.add(task);
    }
  }

  /** Reads it, if it has changed. @throws FileChangedError, FileBusyError */
  async refresh({ leftovers = true } = {}): Promise<void> {
    let fingerprint: Fingerprint | null | undefined;
    try {
      fingerprint = await readFingerprint(this.file);
      if (fingerprint === this.fingerprint) return;
      if (leftovers && this.fingerprint === undefined) await removeLeftover(this.file);
      await this.read(fingerprint !== null);
      if (this.unreadable !== null) this.problems.markResolved(`${this.shown} unreadable`);
      this.unreadable = null;
    } catch (error) {
      if (error instanceof FileBusyError) throw error;
      if (error instanceof FileChangedError || errorCode(error) === 'ENOENT') throw new FileChangedError();
      this.refuse(error, fingerprint);
    }
  }

  private refuse(error: unknown, fingerprint: Fingerprint | null | undefined): void {
    const isMalformed = error instanceof MalformedCSVError;
    const isContent = isMalformed || error instanceof FileRefusedError || error instanceof UnsafePathError;
    if (!isContent && errorCode(error) === undefined) throw error;
    this.contents = null;
    // Permissions of directories can change without a trace in the file.
    this.fingerprint = isContent ? fingerprint : undefined;
    const where = isMalformed ? `${this.shown}:${error.line}` : this.shown;
    this.unreadable = `${where}: ${sanitize(isContent ? error.message : explain(error), 500)}`;
    this.problems.unusable(`${this.shown} unreadable`, this.unreadable);
  }

  private async read(isThere: boolean): Promise<void> {
    const found: Found = { rows: new Map(), problems: this.problems.ofRows(this.shown), results: [] };
    this.undecided.clear();
    let contents: TableContents | null = null;
    if (isThere) {
      await waitUntilUnchanged(this.file);
      contents = await this.readRows(found);
    }
    found.problems.end();
    this.unwritable = null;
    this.contents = contents;
    this.fingerprint = contents?.fingerprint ?? null;
    const before = this.rows;
    this.rows = new Set();
    for (const task of found.rows.keys()) this.noteRow(task);
    for (const task of before) {
      if (this.rows.has(task) || !this.tasks.isCompleted(task)) continue;
      this.lost.add(task);
      this.waiting.add(task);
    }
  }

  private async readRows(found: Found): Promise<TableContents> {
    const { bytes, fingerprint } = await readTable(this.file);
    const { text, bom, zeros, isCut } = decode(bytes);
    const contents: TableContents = {
      fingerprint,
      header: [],
      bom,
      newline: '\n',
      tail: zeros ? 'ours' : null,
      tailLine: 0,
      openEnd: text !== '' && !text.endsWith('\n'),
      tooWide: null,
    };
    const rows = parseRows(text, isCut);
    const first = rows.next();
    if (first.done) return contents;
    const header = headerOf(first.value);
    const reader = await this.readerOf(header);
    contents.header = header;
    if (first.value.newline !== '') contents.newline = first.value.newline;
    let count = 0;
    for (const row of rows) {
      if (row.newline === '') {
        contents.tail = await this.judgeTail(row, text.slice(row.start), header, zeros);
        contents.tailLine = row.line;
        if (contents.tail !== null) continue;
      }
      if (isTooWide(row, header.length)) contents.tooWide ??= row.line;
      this.take(row, reader.read(row), header, found);
      if (++count % MAX_IMPORTED === 0) await this.importFound(found);
    }
    await this.importFound(found);
    return contents;
  }

  /**
   * Finds out what a last row without a line break is: complete (null), the beginning of a row of ours, whose writer was killed, or cut
   * by another program.
   */
  private async judgeTail(
    { cells, open }: CSVRow,
    text: string,
    header: readonly string[],
    zeros: boolean,
  ): Promise<'ours' | 'cut' | null> {
    const begin = text.replace(/\ufffd+$/, ''); // cut within a character
    const [first = ''] = cells;
    const isNamed = header[0] === NAME_COLUMN;
    const candidates = [...this.index.names]
      .filter(([name]) => !isNamed || (cells.length > 1 ? name === first : name.startsWith(first)))
      .map(([, task]) => task);
    for await (const entries of this.tasks.results(candidates)) {
      for (const { completion } of entries) {
        const ours = this.lineOf(completion, header);
        if (ours.startsWith(begin) && (zeros || ours !== text)) return 'ours';
      }
    }
    return open || zeros || cells.length < header.length ? 'cut' : null;
  }

  /** A task's row in a table with these columns. */
  lineOf({ task, result }: Completion, header: readonly string[]): string {
    const cells = cellsOf(task, result, this.index.columns);
    return csvLine(header.map((column) => cells.get(column) ?? ''));
  }

  private take(
    { line, cells }: CSVRow,
    { owner, why }: Reading,
    header: readonly string[],
    found: Found,
  ): void {
    const first = owner === null ? undefined : found.rows.get(owner);
    if (owner === null) found.problems.add(line, cells, why);
    else if (first !== undefined) {
      const name = this.tasks.nameOf(owner);
      found.problems.add(line, cells, () => `task ${name} already has a row (line ${first})`);
    } else {
      found.rows.set(owner, line);
      if (!this.tasks.isCompleted(owner))
        found.results.push({ task: owner, result: resultOf(header, cells, this.index.columns) });
    }
  }

  private async importFound(found: Found): Promise<void> {
    await this.importResults(found.results);
    found.results = [];
    await new Promise(setImmediate);
  }

  private async importResults(results: readonly { task: number; result: Values }[]): Promise<void> {
    if (results.length === 0) return;
    const imported = await this.tasks.importResults(results);
    for (const [at, { task, result }] of results.entries()) {
      if (imported[at]) this.undecided.delete(task);
      else this.undecided.set(task, result);
    }
  }

  /** Rows of tasks that ran when they were read, and perhaps have failed since. */
  async importUndecided(): Promise<void> {
    for (const task of this.undecided.keys()) if (this.tasks.isCompleted(task)) this.undecided.delete(task);
    await this.importResults([...this.undecided].map(([task, result]) => ({ task, result })));
  }

  parametersOfRows(): Promise<ReadonlyMap<number, Values>> {
    return this.tasks.parametersOf(this.rows);
  }

  /** For a header of this table. @throws MalformedCSVError if nothing in it is known */
  async readerOf(header: readonly string[]): Promise<RowMatcher> {
    const matcher = await RowMatcher.make(this.index, header, (task) => this.tasks.nameOf(task));
    if (matcher.usable || this.index.groups.size === 0) return matcher;
    const other = header.length === 1 && /[;\t]/.exec(header[0] as string)?.[0];
    if (other) {
      const name = other === ';' ? 'semicolons' : 'tabs';
      throw new MalformedCSVError(1, `its columns are separated by ${name}: save it with commas`);
    }
    const known = [...this.index.columns].slice(0, 5).join(', ');
    const message = `no column is '${NAME_COLUMN}' or a parameter (${known}): the first line must name the columns`;
    throw new MalformedCSVError(1, message);
  }
}

/** @throws MalformedCSVError */
function headerOf(row: CSVRow): string[] {
  if (row.open)
    throw new MalformedCSVError(row.line, 'the names of the columns are cut off: complete or remove them');
  const header = row.cells.map((cell) => cell.trim());
  for (const [at, name] of header.entries()) {
    if (name !== '' && header.indexOf(name) < at)
      throw new MalformedCSVError(row.line, `two columns are named '${name}': rename one`);
  }
  return header;
}
