import { Buffer } from 'node:buffer';
import { listWords, sanitize } from '../../platform/index.ts';
import type { Values } from '../task/index.ts';
import { NAME_COLUMN } from './cell-value.ts';
import { BOM, type CSVRow, MalformedCSVError, readRows } from './csv.ts';
import type { Match, RowMatcher, TaskIndex } from './row-matcher.ts';
import {
  FileChangedError,
  type Fingerprint,
  fingerprintOfOpen,
  openToRead,
  type TableFile,
} from './safe-file.ts';

/** The state of a table's file after reading it. */
export interface TableContents {
  fingerprint: Fingerprint;
  /** Empty: the file has no text. */
  header: readonly string[];
  bom: boolean;
  newline: '\n' | '\r\n';
  /** Where the last complete row ends, with its line break. What the file has behind is the `partialLine`. */
  end: number;
  partialLine: PartialLine | null;
  /** State of the partial line: `ours` is written anew, `cut` is somebody's that nobody can complete. null: not known yet. */
  partialLineIs: 'ours' | 'cut' | null;
  /** No line break is before `end`. */
  openEnd: boolean;
  /** The first row with values in more cells than the table has columns: no column can be added then. */
  tooWide: number | null;
}

/** The end of a file that is no complete line. */
interface PartialLine {
  /** null: nothing but zeros. */
  row: CSVRow | null;
  bytes: Buffer;
  /** Whether zeros are behind it: it was longer once. */
  zeros: boolean;
}

/**
 * Reads a table from its beginning to its end. The last row is left out (see `partialLine`) if no line break is behind it.
 * @param onRows gets them all, the header not, and what they were cut from
 * @throws FileRefusedError, UnsafePathError, MalformedCSVError, FileChangedError, or an error of the system
 */
export async function readTable(
  table: TableFile,
  onHeader: (header: readonly string[]) => Promise<void>,
  onRows: (rows: readonly CSVRow[], bytes: Buffer, position: number) => Promise<void>,
): Promise<TableContents> {
  const { file, fingerprint } = await openToRead(table);
  try {
    const begin = Buffer.alloc(BOM.length);
    const { bytesRead } = await file.read(begin, 0, BOM.length, 0);
    const bom = bytesRead === BOM.length && begin.equals(BOM);
    const contents: TableContents = {
      fingerprint,
      header: [],
      bom,
      newline: '\n',
      end: 0,
      partialLine: null,
      partialLineIs: null,
      openEnd: false,
      tooWide: null,
    };
    let first = true;
    const batches = readRows(file, bom ? BOM.length : 0);
    let batch = await batches.next();
    for (; !batch.done; batch = await batches.next()) {
      const { rows, bytes, position } = batch.value;
      const head = first ? rows.shift() : undefined;
      if (head !== undefined) {
        first = false;
        contents.header = headerOf(head);
        if (head.newline !== '') contents.newline = head.newline;
        await onHeader(contents.header);
      }
      const last = rows.at(-1);
      if (last?.newline === '') {
        rows.pop();
        contents.partialLine = {
          row: last,
          bytes: Buffer.from(bytes.subarray(last.start - position)),
          zeros: false,
        };
      }
      for (const row of rows) {
        if (isTooWide(row, contents.header.length)) contents.tooWide ??= row.line;
      }
      await onRows(rows, bytes, position);
    }
    if ((await fingerprintOfOpen(file)) !== fingerprint) throw new FileChangedError();
    const size = (await file.stat()).size;
    const textEnd = batch.value;
    contents.end = contents.partialLine?.row?.start ?? textEnd;
    if (size > textEnd) {
      contents.partialLine = { row: null, bytes: Buffer.alloc(0), ...contents.partialLine, zeros: true };
    }
    if (contents.header.length > 0 && contents.end > 0) {
      const { buffer } = await file.read(Buffer.alloc(1), 0, 1, contents.end - 1);
      contents.openEnd = buffer[0] !== 0x0a;
    }
    return contents;
  } catch (error) {
    if (error instanceof MalformedCSVError && (await fingerprintOfOpen(file)) !== fingerprint)
      throw new FileChangedError();
    throw error;
  } finally {
    await file.close();
  }
}

function isTooWide(row: CSVRow, columns: number): boolean {
  return row.cells.length > columns && row.cells.slice(columns).some((cell) => cell.trim() !== '');
}

function headerOf(row: CSVRow): string[] {
  if (row.open)
    throw new MalformedCSVError(row.line, 'the names of the columns are cut off: complete or remove them');
  const header = row.cells.map((cell) => cell.trim());
  const seen = new Set<string>();
  for (const name of header) {
    if (name === '') continue;
    if (seen.has(name)) throw new MalformedCSVError(row.line, `two columns are named '${name}': rename one`);
    seen.add(name);
  }
  return header;
}

/** The task that a row of a table belongs to. */
interface Reading {
  /** The task that has this row; no other is written for it. null: none. */
  owner: number | null;
  /** Whether it is that task's result beyond doubt. */
  certain: boolean;
  /** It fits with gaps, or with more than the task has: rows without any win over it. */
  isLoose: boolean;
  /** It fits these tasks, and nothing in it decides between them. Rows with equal `parameters` fit the same. */
  shared: { tasks: readonly number[]; parameters: string } | null;
  /** For people: why it isn't. */
  why: () => string;
}

const NAMED_AT_MOST = 3;

/** Reads rows of one table. */
export class RowReader {
  private readonly matcher: RowMatcher;
  private readonly columns: number;
  /** A row that ends before this has lost cells that matter. */
  private readonly shortest: number;
  private readonly nameOf: (task: number) => string;

  constructor(
    matcher: RowMatcher,
    index: TaskIndex,
    header: readonly string[],
    nameOf: (task: number) => string,
  ) {
    this.matcher = matcher;
    this.columns = header.length;
    // The last cell of a row that is too short may itself be cut.
    const last = header.findLastIndex((name) => name === NAME_COLUMN || index.columns.has(name));
    this.shortest = Math.min(header.length, last + 2);
    this.nameOf = nameOf;
  }

  read(row: CSVRow): Reading {
    const { cells } = row;
    if (cells.length < this.shortest) {
      return nobodys(() => `this row has ${cells.length} of ${this.columns} cells; complete or remove it.`);
    }
    if (isTooWide(row, this.columns)) {
      return nobodys(
        () =>
          `this row has ${cells.length} cells, but there are ${this.columns} columns: values with commas need quotes.`,
      );
    }
    return this.readingOf(this.matcher.match(cells), cells);
  }

  private readingOf(match: Match, cells: readonly string[]): Reading {
    if (match.kind === 'one') return this.readingOfOne(match, cells);
    if (match.kind === 'none') {
      return nobodys(
        () => `this row is not the result of a task: ${this.matcher.whyNone(cells)}. It is kept.`,
      );
    }
    const { tasks, named } = match;
    const why = () => {
      const names = tasks.slice(0, NAMED_AT_MOST).map((task) => this.nameOf(task));
      const more = tasks.length > NAMED_AT_MOST ? ` and ${tasks.length - NAMED_AT_MOST} more` : '';
      const apart = this.matcher.differences(tasks).map((name) => sanitize(name, 60));
      const missing = apart.length > 0 ? `: ${apart.join(', ')}` : '';
      return `this row fits several tasks (${names.join(', ')}${more}), so it counts for none of them. Fill in the parameters that differ${missing}.`;
    };
    return { owner: named, certain: false, isLoose: false, shared: named === null ? match : null, why };
  }

  private readingOfOne(match: Match & { kind: 'one' }, cells: readonly string[]): Reading {
    const { task, gaps } = match;
    const isLoose = gaps !== undefined;
    const decisive = this.matcher.decisiveGaps(match, cells);
    if (decisive.length === 0) return { owner: task, certain: true, isLoose, shared: null, why: () => '' };
    const missing = listWords(decisive.map((name) => sanitize(name, 60)));
    const why = () =>
      `this row says nothing of ${missing}, as other rows do, so it counts for no task. It is kept. If it is the row of a task of this sweep, fill that in.`;
    const shared = { tasks: [task], parameters: `${task} without ${missing}` };
    return { owner: null, certain: false, isLoose, shared, why };
  }
}

function nobodys(why: () => string): Reading {
  return { owner: null, certain: false, isLoose: false, shared: null, why };
}

/** A row that fits several tasks: they differ only in what it doesn't say, such as the seed. */
export interface SharedRow {
  line: number;
  cells: readonly string[];
  result: Values;
  /** The normalized result: see `contentOf`. */
  content: string;
  /** For people. */
  why: () => string;
}

interface Group {
  tasks: readonly number[];
  rows: SharedRow[];
  /** Tasks that wrote one of the rows, nobody knows which. At most as many as rows. */
  covered: Set<number>;
}

/** More are not kept in memory, and count for nobody. */
const MAX_ROWS = 10_000;
const MAX_TASKS = 1_000;

/** The rows of a table that fit several tasks, by the tasks. */
export class SharedRows {
  readonly #groups = new Map<string, Group>();
  readonly #byTask = new Map<number, Group[]>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get covered(): number[] {
    return [...this.#groups.values()].flatMap(({ covered }) => [...covered]);
  }

  /** @returns false: there are too many */
  add({ tasks, parameters }: { tasks: readonly number[]; parameters: string }, row: SharedRow): boolean {
    if (tasks.length > MAX_TASKS || this.#size === MAX_ROWS) return false;
    let group = this.#groups.get(parameters);
    if (group === undefined) {
      group = { tasks, rows: [], covered: new Set() };
      this.#groups.set(parameters, group);
      for (const task of tasks) {
        const groups = this.#byTask.get(task);
        if (groups === undefined) this.#byTask.set(task, [group]);
        else groups.push(group);
      }
    }
    group.rows.push(row);
    this.#size++;
    return true;
  }

  fits(task: number): boolean {
    return this.#byTask.has(task);
  }

  /** Finds the rows that fit a task. `spare`: how many of the rows no task is known to have written; `tasks`: all that the rows fit. */
  of(task: number): { rows: SharedRow[]; spare: number; tasks: Set<number> } {
    const groups = this.#byTask.get(task) ?? [];
    return {
      rows: groups.flatMap(({ rows }) => rows),
      spare: groups.reduce((sum, group) => sum + spareOf(group), 0),
      tasks: new Set(groups.flatMap((group) => group.tasks)),
    };
  }

  /** Rows that no task is known to have written. */
  get spare(): { tasks: readonly number[]; rows: readonly SharedRow[] }[] {
    return [...this.#groups.values()]
      .filter(({ rows, covered }) => rows.length > covered.size)
      .map(({ tasks, rows, covered }) => ({ tasks, rows: rows.slice(covered.size) }));
  }

  /** One of the rows is this task's, whichever. @returns false: there is none left */
  cover(task: number): boolean {
    const group = this.#byTask.get(task)?.find((each) => spareOf(each) > 0);
    group?.covered.add(task);
    return group !== undefined;
  }

  /** @returns was it covered? */
  uncover(task: number): boolean {
    return (this.#byTask.get(task) ?? []).some(({ covered }) => covered.delete(task));
  }

  /** The row of a task that has this result, unless it is in `taken`. */
  find(task: number, content: string, taken: ReadonlyMap<number, unknown>): SharedRow | undefined {
    for (const { rows } of this.#byTask.get(task) ?? []) {
      const row = rows.find((each) => each.content === content && !taken.has(each.line));
      if (row !== undefined) return row;
    }
    return undefined;
  }
}

/** Rows without a result are no worker's: they are ours, from which a worker has taken the columns that it doesn't know. */
function spareOf({ rows, covered }: Group): number {
  return rows.filter(({ content }) => content !== '').length - covered.size;
}
