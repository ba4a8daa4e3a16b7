import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { sanitize } from '../text.ts';
import { warn } from '../warnings.ts';
import { Malformed, readContents } from './results/contents.ts';
import type { Row } from './results/csv.ts';
import { RowMatcher } from './results/matching.ts';
import { RowReader } from './results/rows.ts';
import { TaskIndex } from './results/task-index.ts';
import type { Sweep } from './sweep/sweep.ts';
import { taskId } from './task.ts';

const TABLE = 'final_results.csv';
/** Tasks of larger sweeps are not compared with tables: all of them would have to be kept. */
const MOST_TASKS = 1_000_000;

/** A table that is there, and the tasks whose rows belong into it. */
interface Table {
  /** As it is shown: below the project. */
  path: string;
  index: TaskIndex;
  ids: string[];
}

/**
 * Which tasks of a sweep have their rows in tables of results: their ids, and the tables. Only for those who look: nothing is
 * repaired, and a table that can't be read is warned about and passed over.
 */
export async function recordedTasks(sweep: Sweep, project: string): Promise<ReadonlyMap<string, string>> {
  if (sweep.size > MOST_TASKS) return new Map();
  const tables = new Map<string, Table | null>();
  for (const { outputDirectory, parameters } of sweep.tasks()) {
    let table = tables.get(outputDirectory);
    if (table === undefined) {
      const path = join(outputDirectory, TABLE);
      table = existsSync(resolve(project, path)) ? { path, index: new TaskIndex(), ids: [] } : null;
      tables.set(outputDirectory, table);
    }
    if (table === null) continue;
    table.index.add(table.ids.length, parameters, null);
    table.ids.push(taskId(parameters));
  }
  const recorded = new Map<string, string>();
  for (const table of tables.values()) {
    if (table === null) continue;
    try {
      await readTable(table, project, recorded);
    } catch (error) {
      const { message } = error as Error;
      const line = error instanceof Malformed ? `:${error.line}` : '';
      warn(
        `${sanitize(table.path, 300)}${line} can't be read, so its rows don't count here: ${sanitize(message, 300)}`,
      );
    }
  }
  return recorded;
}

async function readTable(
  { path, index, ids }: Table,
  project: string,
  recorded: Map<string, string>,
): Promise<void> {
  let reader: RowReader | null = null;
  let columns = 0;
  const look = (row: Row) => {
    const reading = reader?.read(row);
    if (reading?.certain) recorded.set(ids[reading.owner as number] as string, path);
  };
  const { tail } = await readContents(
    resolve(project, path),
    async (header) => {
      columns = header.length;
      const matcher = await RowMatcher.make(index, header);
      if (matcher.usable) reader = new RowReader(matcher, index, header, (task) => ids[task] as string);
    },
    async (rows) => rows.forEach(look),
  );
  // Its line break is missing, but perhaps nothing else.
  if (tail?.row && !tail.row.open && tail.row.cells.length === columns) look(tail.row);
}
