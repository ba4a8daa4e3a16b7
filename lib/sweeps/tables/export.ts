import { csvLine } from '../../platform/index.ts';
import { type Completed, type Completion, damagedTasks, pagesAfter, type Queue } from '../queue/index.ts';
import { strictJSON, type Value, type Values } from '../task/index.ts';
import { cellsOf, columnOf, NAME_COLUMN } from './cell-value.ts';

export type ExportFormat = 'csv' | 'jsonl';

/**
 * Writes all completed tasks, in the order of completion. CSV: one table for all directories, with the columns of their tables;
 * JSON lines: `{"task_id", "id", "phases", "parameters", "result", "source"}`, numbers as they were written (NaN and infinities
 * are strings).
 * @param output gets the text, some lines at a time
 * @returns how many
 * @throws ERR_QUEUE with the tasks whose records are damaged, once all others are written; what `output` throws
 */
export async function exportResults(
  queue: Queue,
  output: (text: string) => void,
  format: ExportFormat,
): Promise<number> {
  const write = (lines: readonly string[]) => {
    if (lines.length > 0) output(`${lines.join('\n')}\n`);
  };
  const damaged = new Map<string, string>();
  const inFull = async (after: number, limit: number) => {
    const page = await queue.completions(after, limit);
    for (const { task, damage = task.damage } of page)
      if (damage !== undefined) damaged.set(task.name, damage);
    return page;
  };
  const count = await (format === 'jsonl'
    ? eachPage(inFull, Number.POSITIVE_INFINITY, (page) => write(sound(page).map(lineOf)))
    : exportTable(queue, inFull, write));
  if (damaged.size === 0) return count;
  throw damagedTasks(
    queue.url,
    Array.from(damaged, ([name, damage]) => ({ name, damage })),
  );
}

async function exportTable(
  queue: Queue,
  inFull: Queue['completions'],
  write: (lines: readonly string[]) => void,
): Promise<number> {
  // Columns have to be known before the first row. Tasks that are completed meanwhile are left for the next time.
  const parameters = new Set<string>();
  let last = 0;
  const inShort: Queue['completed'] = (after, limit) => queue.completed(after, limit);
  await eachPage(inShort, Number.POSITIVE_INFINITY, (page) => {
    for (const { task, sequence } of page) {
      for (const key of Object.keys(task.parameters)) parameters.add(columnOf(key));
      last = sequence;
    }
  });
  const columns = new Set([NAME_COLUMN, ...parameters]);
  await eachPage(inFull, last, (page) => {
    for (const { task, result } of sound(page)) {
      for (const column of cellsOf(task, result, parameters).keys()) columns.add(column);
    }
  });
  const header = [...columns];
  write([csvLine(header)]);
  return eachPage(inFull, last, (page) =>
    write(
      sound(page).map(({ task, result }) => {
        const cells = cellsOf(task, result, parameters);
        return csvLine(header.map((column) => cells.get(column) ?? ''));
      }),
    ),
  );
}

function sound(page: readonly Completion[]): Completion[] {
  return page.filter(({ task, damage = task.damage }) => damage === undefined);
}

async function eachPage<T extends Completed>(
  read: (after: number, limit: number) => Promise<T[]>,
  last: number,
  act: (page: readonly T[]) => void,
): Promise<number> {
  let count = 0;
  for await (const page of pagesAfter(read, 0)) {
    const wanted = page.filter(({ sequence }) => sequence <= last);
    if (wanted.length > 0) act(wanted);
    count += wanted.length;
    if (wanted.length < page.length) break;
  }
  return count;
}

function lineOf({ task, result, source }: Completion): string {
  const line: Record<string, Value> = {
    task_id: task.name,
    id: task.id,
    phases: [...new Set(task.destinations.map(({ phase }) => phase))],
    parameters: task.parameters as Values,
    result,
    source,
  };
  return strictJSON(line);
}
