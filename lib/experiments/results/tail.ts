import type { Table } from './table.ts';
import { NAME_COLUMN } from './task-index.ts';
import { type Entry, rowOf } from './writing.ts';

/**
 * Finds out what a last row without a line break is: complete, the beginning of one of ours (whoever wrote it was killed, or the
 * disk was full), or cut by somebody else.
 * @param completed the tasks that have a result, and their results
 * @returns how many rows were adopted: the row itself
 */
export async function judgeTail(
  table: Table,
  completed: (only: (task: number) => boolean) => AsyncIterable<readonly Entry[]>,
): Promise<number> {
  const { contents } = table;
  const tail = contents?.tail;
  if (contents === null || tail === null || tail === undefined || contents.tailIs !== null) return 0;
  const { row, bytes, zeros } = tail;
  if (row === null) {
    contents.tailIs = 'ours';
    return 0;
  }
  for await (const entries of completed(mayBegin(table, row.cells))) {
    for (const { completion } of entries) {
      const ours = Buffer.from(rowOf(completion, contents.header, table) + contents.newline);
      if (!ours.subarray(0, bytes.length).equals(bytes)) continue;
      if (zeros || bytes.length !== ours.length - contents.newline.length) {
        contents.tailIs = 'ours';
        return 0;
      }
    }
  }
  if (row.open || zeros || row.cells.length < contents.header.length) {
    contents.tailIs = 'cut';
    return 0;
  }
  contents.tail = null;
  contents.openEnd = true;
  return table.take(row);
}

/** Most tasks can be told from the tail by their names alone. */
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
