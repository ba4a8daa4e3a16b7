import { csvLine, sanitize } from '../../platform/index.ts';
import { cellsOf, cellText, columnOf, NAME_COLUMN } from './cell-value.ts';
import { BOM, type CSVRow, decode, parseRows } from './csv.ts';
import type { PendingRow, Table, TableContents } from './table.ts';
import { append, FileChangedError, readTable, replace } from './table-file.ts';

/** The table can't be written as the file is; the message is for people. */
export class UnwritableError extends Error {}

const AT_ONCE = 4 * 1024 * 1024;

/**
 * Appends rows, or rewrites the whole table where it gets new columns. Tasks whose rows are written are taken from `table.waiting` at once.
 * @throws FileChangedError, UnwritableError, errors of the system
 */
export async function write(table: Table, entries: readonly PendingRow[]): Promise<void> {
  const { contents } = table;
  const before = contents?.header ?? [];
  const known = new Set(before);
  if (known.size === 0) for (const column of [NAME_COLUMN, ...table.index.columns]) known.add(column);
  for (const { completion } of entries) {
    for (const column of cellsOf(completion.task, completion.result, table.index.columns).keys())
      known.add(column);
  }
  const why = whyNothingCanBeWritten(table, known);
  if (why !== null) throw new UnwritableError(why);
  // Columns without a name count as well: where cells stand is what matters.
  const header = [...before, ...[...known].filter((column) => !before.includes(column))];
  const isNew = contents === null || header.length > before.length;
  if (!isNew && contents.tail === null) return appendRows(table, contents, entries);
  await rewrite(table, header, entries, await parameterFiller(table, before, header));
  table.noteWritten(entries);
}

/** Fills in parameters whose columns are added: with empty cells there, rows would no longer fit their tasks. */
async function parameterFiller(
  table: Table,
  before: readonly string[],
  header: readonly string[],
): Promise<(row: CSVRow) => readonly string[]> {
  const added = header.slice(before.length);
  if (before.length === 0 || !added.some((column) => table.index.columns.has(column)))
    return ({ cells }) => cells;
  const reader = await table.readerOf(before);
  const parameters = await table.parametersOfRows();
  return (row) => {
    const { owner } = reader.read(row);
    const known = Object.entries((owner !== null && parameters.get(owner)) || {});
    const cells = new Map(known.map(([key, value]) => [columnOf(key), cellText(value)]));
    if (cells.size === 0 || row.cells.length > before.length) return row.cells;
    return header.map((column, at) => row.cells[at] ?? (at < before.length ? '' : (cells.get(column) ?? '')));
  };
}

/**
 * Why no row can be written until a person corrects the table; null: nothing in it is in the way.
 * @param columns what rows need. Default: what every row needs
 */
export function whyNothingCanBeWritten(
  { shown, contents }: Table,
  columns: Iterable<string> = [NAME_COLUMN],
): string | null {
  if (contents === null) return null;
  const { header, tail, tailLine, tooWide } = contents;
  if (tail === 'cut') return `${shown}:${tailLine}: the last line is cut off: complete or remove it`;
  const added = [...columns].filter((name) => !header.includes(name));
  if (tooWide === null || header.length === 0 || added.length === 0) return null;
  const names = added.map((name) => sanitize(name, 60)).join(', ');
  return `${shown}:${tooWide}: this row has values beyond the last column, so no column can be added (${names}): values with commas need quotes`;
}

/** Takes the rows of tasks out. @throws as {@link write} */
export async function drop(table: Table, tasks: ReadonlySet<number>): Promise<void> {
  if (table.contents === null) return;
  const why = whyNothingCanBeWritten(table, []);
  if (why !== null) throw new UnwritableError(why);
  const { header } = table.contents;
  const reader = await table.readerOf(header);
  await rewrite(table, header, [], (row) => (tasks.has(reader.read(row).owner ?? -1) ? null : row.cells));
  for (const task of tasks) {
    table.rows.delete(task);
    table.undecided.delete(task);
  }
}

function appendRows(table: Table, before: TableContents, entries: readonly PendingRow[]): void {
  let contents = before;
  for (let from = 0; from < entries.length; ) {
    let text = contents.openEnd ? contents.newline : '';
    let to = from;
    for (; to < entries.length && text.length < AT_ONCE; to++)
      text += table.lineOf((entries[to] as PendingRow).completion, contents.header) + contents.newline;
    const { fingerprint, error } = append(table.file, contents.fingerprint, Buffer.from(text));
    contents = { ...contents, fingerprint, openEnd: contents.openEnd && error !== null };
    table.written(contents);
    if (error !== null) throw error;
    table.noteWritten(entries.slice(from, to));
    from = to;
  }
}

/** @param edit the new cells of a row; null: it is left out */
async function rewrite(
  table: Table,
  header: readonly string[],
  entries: readonly PendingRow[],
  edit: (row: CSVRow) => readonly string[] | null,
): Promise<void> {
  const { contents } = table;
  const newline = contents?.newline ?? '\n';
  const columns = contents?.header.length ?? 0;
  const fingerprint = await replace(table.file, contents?.fingerprint ?? null, async (file) => {
    let text = contents?.bom ? BOM : '';
    const add = async (line: string) => {
      text += line + newline;
      if (text.length < AT_ONCE) return;
      await file.appendFile(text);
      text = '';
    };
    await add(csvLine(header));
    if (contents !== null) {
      const now = await readTable(table.file);
      if (now.fingerprint !== contents.fingerprint) throw new FileChangedError();
      const rows = parseRows(decode(now.bytes).text);
      rows.next(); // the header
      for (const row of rows) {
        const cells = row.newline === '' && contents.tail === 'ours' ? null : edit(row);
        // A row that is too short stays so: with empty cells, it would look complete.
        const gap = cells === null || cells.length < columns ? 0 : Math.max(0, header.length - cells.length);
        if (cells !== null) await add(csvLine([...cells, ...Array<string>(gap).fill('')]));
      }
    }
    for (const { completion } of entries) await add(table.lineOf(completion, header));
    await file.appendFile(text);
  });
  table.written({
    fingerprint,
    header,
    bom: contents?.bom ?? false,
    newline,
    tail: null,
    tailLine: 0,
    openEnd: false,
    tooWide: contents?.tooWide ?? null,
  });
}
