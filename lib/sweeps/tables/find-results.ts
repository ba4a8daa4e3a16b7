import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { warn } from '../../platform/index.ts';
import type { Sweep } from '../files/index.ts';
import type { Queue } from '../queue/index.ts';
import { outputDirectoriesOf, taskId } from '../task/index.ts';
import { KnownTasks, type TaskSource } from './known-tasks.ts';
import type { Table } from './table.ts';
import { commonTablePath, FileBusyError, FileChangedError, tablePath } from './table-file.ts';
import { whyNothingCanBeWritten } from './table-writer.ts';

/** Tasks of larger sweeps are not compared with tables: all of them would have to be kept. */
const MAX_TASKS = 1_000_000;

/**
 * The ids of a sweep's tasks that have their rows in tables of results, as a queue finds out when it starts with them: by the same tables,
 * tasks and rules. Changes nothing: a table that can't be read is told of and passed over.
 * @param project the directory that relative output directories are in
 * @param queue has the tasks that are known already: rows may be theirs
 */
export async function findCompletedTasks(
  sweep: Pick<Sweep, 'size' | 'tasks'>,
  project: string,
  queue: Pick<Queue, 'tasks' | 'completions'> | null,
  tell: (message: string) => void = warn,
): Promise<ReadonlySet<string>> {
  const found = new Set<string>();
  const hasTable = (directory: string) => existsSync(tablePath(resolve(project), directory));
  if (sweep.size > MAX_TASKS) return found;
  if (commonTablePath(resolve(project)) === null) {
    if (![...new Set(outputDirectoriesOf(sweep.tasks()))].some(hasTable)) return found;
  }
  const source: TaskSource = {
    tasks: () => queue?.tasks() ?? (async function* () {})(),
    completions: async (after, limit) => queue?.completions(after, limit) ?? [],
    importResults: async (rows) => {
      for (const { id } of rows) found.add(id);
      return rows.map(() => true);
    },
    lookUp: async () => [], // nothing is written
  };
  const tasks = new TasksToMatch(source, project, tell, 'its rows are ignored here');
  for await (const { task, state, sequence } of source.tasks()) {
    const number = tasks.add(task);
    if (state === 'completed') tasks.complete(number, sequence as number);
  }
  for (const { parameters, outputDirectory, phase, command } of sweep.tasks()) {
    const id = taskId(parameters);
    const destinations = [{ phase, outputDirectory }];
    tasks.add({ id, name: id.slice(0, 14), parameters, command, destinations }, false);
  }
  for (const table of tasks.tables.values()) await readTableQuietly(table, false, tell);
  if (tasks.common !== null) await readTableQuietly(tasks.common, true, tell);
  return found;
}

/** Tasks whose tables are only looked at. */
class TasksToMatch extends KnownTasks {
  /** Rows of tasks that the queue has completed are sought as well. */
  override isCompleted(): boolean {
    return false;
  }
}

/** Reads a table as it is, and changes nothing. */
async function readTableQuietly(
  table: Table,
  isCommon: boolean,
  tell: (message: string) => void,
): Promise<void> {
  try {
    await table.refresh({ leftovers: false });
    const why = isCommon ? null : whyNothingCanBeWritten(table);
    if (why !== null) tell(`${why}. Until you correct the file, exp run starts none of its tasks.`);
  } catch (error) {
    if (!(error instanceof FileChangedError || error instanceof FileBusyError)) throw error;
    tell(`${table.shown}: another process is changing this file; its rows are ignored.`);
  }
}
