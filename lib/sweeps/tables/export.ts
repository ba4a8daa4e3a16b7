import { csvLine } from '../../platform/index.ts';
import { type Completion, completionsAfter, type Queue } from '../queue/index.ts';
import { cellsOf, columnOf, NAME_COLUMN } from './cell-value.ts';

/**
 * Writes all completed tasks as one table for all directories, in the order of completion, with the columns of their tables.
 * @param output gets the text, line by line
 * @throws ERR_QUEUE; what `output` throws
 */
export async function exportResults(queue: Queue, output: (text: string) => void): Promise<void> {
  // Columns have to be known before the first row. Tasks that are completed meanwhile are left for the next time.
  const parameters = new Set<string>();
  let last = 0;
  for await (const { task, sequence } of completionsAfter(queue, 0)) {
    for (const key of Object.keys(task.parameters)) parameters.add(columnOf(key));
    last = sequence;
  }
  const columns = new Set([NAME_COLUMN, ...parameters]);
  for await (const { task, result } of completionsUntil(queue, last))
    for (const column of cellsOf(task, result, parameters).keys()) columns.add(column);
  const header = [...columns];
  output(`${csvLine(header)}\n`);
  for await (const { task, result } of completionsUntil(queue, last)) {
    const cells = cellsOf(task, result, parameters);
    output(`${csvLine(header.map((column) => cells.get(column) ?? ''))}\n`);
  }
}

async function* completionsUntil(queue: Queue, last: number): AsyncGenerator<Completion> {
  for await (const completion of completionsAfter(queue, 0)) {
    if (completion.sequence > last) return;
    yield completion;
  }
}
