import { csvLine } from '../../platform/index.ts';
import { type Completed, pagesAfter, type Queue } from '../queue/index.ts';
import { cellsOf, columnOf, NAME_COLUMN } from './cell-value.ts';

/**
 * Writes all completed tasks as one table for all directories, in the order of completion, with the columns of their tables.
 * @param output gets the text, some lines at a time
 * @throws ERR_QUEUE; what `output` throws
 */
export async function exportResults(queue: Queue, output: (text: string) => void): Promise<void> {
  const inFull: Queue['completions'] = (after, limit) => queue.completions(after, limit);
  // Columns have to be known before the first row. Tasks that are completed meanwhile are left for the next time.
  const parameters = new Set<string>();
  let last = 0;
  for await (const page of pagesAfter((after, limit) => queue.completed(after, limit), 0)) {
    for (const { task, sequence } of page) {
      for (const key of Object.keys(task.parameters)) parameters.add(columnOf(key));
      last = sequence;
    }
  }
  const columns = new Set([NAME_COLUMN, ...parameters]);
  for await (const page of pagesUntil(inFull, last)) {
    for (const { task, result } of page)
      for (const column of cellsOf(task, result, parameters).keys()) columns.add(column);
  }
  const header = [...columns];
  output(`${csvLine(header)}\n`);
  for await (const page of pagesUntil(inFull, last)) {
    const lines = page.map(({ task, result }) => {
      const cells = cellsOf(task, result, parameters);
      return `${csvLine(header.map((column) => cells.get(column) ?? ''))}\n`;
    });
    output(lines.join(''));
  }
}

async function* pagesUntil<T extends Completed>(
  read: (after: number, limit: number) => Promise<T[]>,
  last: number,
): AsyncGenerator<T[]> {
  for await (const page of pagesAfter(read, 0)) {
    const wanted = page.filter(({ sequence }) => sequence <= last);
    if (wanted.length > 0) yield wanted;
    if (wanted.length < page.length) return;
  }
}
