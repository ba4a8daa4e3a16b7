import type { FileHandle } from 'node:fs/promises';
import { sanitize } from '../../platform/index.ts';
import type { Completion } from '../queue/index.ts';
import { cellsOf, NAME_COLUMN } from './cell-value.ts';
import { BOM, type CSVRow, formatRow } from './csv.ts';
import { append, FileChangedError, replace } from './safe-file.ts';
import type { Table } from './table.ts';
import { readTable, type TableContents } from './table-reader.ts';

/** A row that is to be written. */
export interface PendingRow {
  task: number;
  completion: Completion;
}

/** It can't be written as the file is; the message is for people. */
export class UnwritableError extends Error {}

const AT_ONCE = 4 * 1024 * 1024;

/** A task's row in a table with these columns. */
function rowOf({ task, result }: Completion, header: readonly string[], table: Table): string {
  const cells = cellsOf(task, result, table.index.columns);
  return formatRow(header.map((column) => cells.get(column) ?? ''));
}

/**
 * Writes rows. Those that are written are taken from `table.waiting` at once.
 * @param fills the lines of rows that are there, and get what tells them from other tasks' rows
 * @throws FileChangedError, UnwritableError, errors of the system
 */
export async function write(
  table: Table,
  entries: readonly PendingRow[],
  fills: ReadonlyMap<number, PendingRow>,
): Promise<void> {
  const { contents } = table;
  const known = new Set(contents?.header);
  if (known.size === 0) for (const column of [NAME_COLUMN, ...table.index.columns.keys()]) known.add(column);
  for (const { completion } of entries) {
    for (const column of cellsOf(completion.task, completion.result, table.index.columns).keys()) {
      known.add(column);
    }
  }
  const why = whyNothingCanBeWritten(table, known);
  if (why !== null) throw new UnwritableError(why);
  // Columns without a name, and names twice, count as well: where cells stand is what matters.
  const before = contents?.header ?? [];
  const there = new Set(before);
  const header = [...before, ...[...known].filter((column) => !there.has(column))];
  const isNew = contents === null || header.length > before.length || fills.size > 0;
  if (isNew) await rewrite(table, header, () => false, entries, fills);
  else appendRows(table, contents, entries);
}

/**
 * Why no row can be written until a person corrects the table; null: nothing in it is in the way. To be asked when the last line was judged.
 * @param columns what rows need. Default: what every row needs
 */
export function whyNothingCanBeWritten(
  { shown, contents }: Table,
  columns: Iterable<string> = [NAME_COLUMN],
): string | null {
  if (contents === null) return null;
  const { header, partialLine, partialLineIs, tooWide } = contents;
  if (partialLineIs === 'cut')
    return `${shown}:${partialLine?.row?.line ?? ''}: the last line is cut off: complete or remove it`;
  const added = [...columns].filter((name) => !header.includes(name));
  if (tooWide === null || header.length === 0 || added.length === 0) return null;
  const names = added.map((name) => sanitize(name, 60)).join(', ');
  return `${shown}:${tooWide}: this row has values beyond the last column, so no column can be added (${names}): values with commas need quotes`;
}

/** Takes the rows of tasks out. @throws as {@link write} */
export async function drop(table: Table, tasks: ReadonlySet<number>): Promise<void> {
  if (table.contents === null) return;
  const { header } = table.contents;
  const reader = await table.readerOf(header);
  await rewrite(table, header, (row) => tasks.has(reader.read(row).owner ?? -1), [], new Map());
  for (const task of tasks) {
    table.rows.delete(task);
    table.undecided.delete(task);
  }
}

/**
 * Takes out rows of ours with more cells than there are columns: an editor put an older header back while we were writing. Nothing is lost
 * by that, since the queue has all that they say. Rows that say anything else stay.
 * @param resultsOf finds the results of completed tasks
 * @throws FileChangedError if rows were taken out: their tasks may have none now. And as {@link write}
 */
export async function dropOverlong(
  table: Table,
  resultsOf: (tasks: Iterable<number>) => AsyncIterable<readonly PendingRow[]>,
): Promise<void> {
  const { contents, overlong } = table;
  if (contents === null || overlong.size === 0) return;
  const lines = new Set<number>();
  for await (const entries of resultsOf(overlong.keys())) {
    for (const { task, completion } of entries) {
      for (const { line, cells } of overlong.get(task) ?? []) {
        if (saysOnly(completion, cells, contents.header, table)) lines.add(line);
      }
    }
  }
  if (lines.size === 0) return overlong.clear();
  await rewrite(table, contents.header, ({ line }) => lines.has(line), [], new Map());
  throw new FileChangedError();
}

/** Whether all cells are the task's, those behind the last column in whichever columns they were. */
function saysOnly(
  { task, result }: Completion,
  cells: readonly string[],
  header: readonly string[],
  table: Table,
): boolean {
  const left = cellsOf(task, result, table.index.columns);
  for (const [at, column] of header.entries()) {
    if (cells[at] !== (left.get(column) ?? '')) return false;
    left.delete(column);
  }
  const surplus = new Set(left.values()).add('');
  return cells.slice(header.length).every((cell) => surplus.has(cell));
}

function appendRows(table: Table, before: TableContents, entries: readonly PendingRow[]): void {
  let contents = before;
  for (let from = 0; from < entries.length; ) {
    let text = contents.openEnd ? contents.newline : '';
    let to = from;
    for (; to < entries.length && text.length < AT_ONCE; to++) {
      text += rowOf((entries[to] as PendingRow).completion, contents.header, table) + contents.newline;
    }
    const end = contents.partialLineIs === 'ours' ? contents.end : null;
    const { fingerprint, error } = append(table.file, contents.fingerprint, Buffer.from(text), end);
    contents = {
      ...contents,
      fingerprint,
      partialLine: null,
      partialLineIs: null,
      openEnd: contents.openEnd && error !== null,
    };
    table.written(contents);
    if (error !== null) throw error;
    noteWritten(table, entries.slice(from, to));
    from = to;
  }
}

function noteWritten(table: Table, entries: readonly PendingRow[]): void {
  for (const { task } of entries) {
    table.rows.add(task);
    table.waiting.delete(task);
    table.lost.delete(task);
  }
}

async function rewrite(
  table: Table,
  header: readonly string[],
  isDropped: (row: CSVRow) => boolean,
  entries: readonly PendingRow[],
  fills: ReadonlyMap<number, PendingRow>,
): Promise<void> {
  const { contents } = table;
  const newline = contents?.newline ?? '\n';
  const fingerprint = await replace(table.file, table.fingerprint ?? null, async (file) => {
    const output = new Output(file);
    if (contents?.bom) output.add(BOM);
    output.add(Buffer.from(formatRow(header) + newline));
    if (contents !== null) await copyRows(table, contents, header, isDropped, fills, output);
    const filled = new Set(fills.values());
    for (const entry of entries) {
      if (filled.has(entry)) continue;
      const { completion } = entry;
      output.add(Buffer.from(rowOf(completion, header, table) + newline));
      if (output.isFull) await output.flush();
    }
    await output.flush();
  });
  table.written({
    fingerprint,
    header,
    bom: contents?.bom ?? false,
    newline,
    end: 0,
    partialLine: null,
    partialLineIs: null,
    openEnd: false,
    tooWide: contents?.tooWide ?? null,
  });
  noteWritten(table, entries);
  // Its rows are in other lines now, and some of them are no longer shared.
  if (table.shared.size > 0) table.forget();
}

/** Byte by byte, but for the cells of new columns, and rows that are filled in. */
async function copyRows(
  table: Table,
  contents: TableContents,
  header: readonly string[],
  isDropped: (row: CSVRow) => boolean,
  fills: ReadonlyMap<number, PendingRow>,
  output: Output,
): Promise<void> {
  const before = contents.header.length;
  const fill = (row: CSVRow): Buffer | null => {
    const completion = fills.get(row.line)?.completion;
    if (completion === undefined) return null;
    const cells = cellsOf(completion.task, completion.result, table.index.columns);
    const filled = header.map((column, at) => row.cells[at]?.trim() || (cells.get(column) ?? ''));
    return Buffer.from(formatRow(filled));
  };
  // A row that is too short stays so: with empty cells, it would look complete.
  const gap = (cells: number) => (cells < before ? '' : ','.repeat(Math.max(0, header.length - cells)));
  const now = await readTable(
    table.file,
    async () => {},
    async (rows, bytes, position) => {
      for (const row of rows) {
        if (isDropped(row)) continue;
        const filled = fill(row);
        output.add(filled ?? bytes.subarray(row.start - position, row.end - position));
        output.add(Buffer.from((filled ? '' : gap(row.cells.length)) + row.newline));
      }
      await output.flush();
    },
  );
  if (now.fingerprint !== contents.fingerprint) throw new FileChangedError();
  const { partialLine } = now;
  if (partialLine?.row && contents.partialLineIs !== 'ours' && !isDropped(partialLine.row)) {
    const filled = fill(partialLine.row);
    output.add(filled ?? partialLine.bytes);
    output.add(Buffer.from((filled ? '' : gap(partialLine.row.cells.length)) + contents.newline));
  }
}

class Output {
  private readonly file: FileHandle;
  private parts: Buffer[] = [];
  private size = 0;

  constructor(file: FileHandle) {
    this.file = file;
  }

  add(bytes: Buffer): void {
    this.parts.push(bytes);
    this.size += bytes.length;
  }

  get isFull(): boolean {
    return this.size > AT_ONCE;
  }

  async flush(): Promise<void> {
    const bytes = Buffer.concat(this.parts);
    this.parts = [];
    this.size = 0;
    if (bytes.length > 0) await this.file.appendFile(bytes);
  }
}

/**
 * Finds out what a last row without a line break is: complete, the beginning of one of ours (whoever wrote it was killed, or the
 * disk was full), or cut by somebody else.
 * @param completed the tasks that have a result, and their results
 * @returns how many rows were imported: the row itself
 */
export async function judgePartialLine(
  table: Table,
  completed: (only: (task: number) => boolean) => AsyncIterable<readonly PendingRow[]>,
): Promise<number> {
  const { contents } = table;
  const partialLine = contents?.partialLine;
  if (
    contents === null ||
    partialLine === null ||
    partialLine === undefined ||
    contents.partialLineIs !== null
  )
    return 0;
  const { row, bytes, zeros } = partialLine;
  if (row === null) {
    contents.partialLineIs = 'ours';
    return 0;
  }
  for await (const entries of completed(mayBegin(table, row.cells))) {
    for (const { completion } of entries) {
      const ours = Buffer.from(rowOf(completion, contents.header, table) + contents.newline);
      if (!ours.subarray(0, bytes.length).equals(bytes)) continue;
      if (zeros || bytes.length !== ours.length - contents.newline.length) {
        contents.partialLineIs = 'ours';
        return 0;
      }
    }
  }
  if (row.open || zeros || row.cells.length < contents.header.length) {
    contents.partialLineIs = 'cut';
    return 0;
  }
  contents.partialLine = null;
  contents.openEnd = true;
  return table.take(row);
}

/** Rules out tasks by their names alone, where the partial line has one. */
function mayBegin(table: Table, cells: readonly string[]): (task: number) => boolean {
  if (table.contents?.header[0] !== NAME_COLUMN) return () => true;
  const [first = ''] = cells;
  if (cells.length > 1) {
    const named = table.index.names.get(first);
    return (task) => task === named;
  }
  const tasks = new Set<number>();
  for (const [name, task] of table.index.names) if (name.startsWith(first)) tasks.add(task);
  return (task) => tasks.has(task);
}
