import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { warn } from '../../platform/index.ts';
import type { Sweep } from '../files/index.ts';
import type { Queue } from '../queue/index.ts';
import { outputDirectoriesOf, taskId, type Values } from '../task/index.ts';
import { decode, parseRows } from './csv.ts';
import { KnownTasks, type TaskSource } from './known-tasks.ts';
import { headerOf, type Table } from './table.ts';
import { commonTablePath, FileBusyError, FileChangedError, readTable, tablePath } from './table-file.ts';
import { whyNothingCanBeWritten } from './table-writer.ts';

/** A task that may have a row already. */
interface TaskToMatch {
  /** The task's id, or a function that computes it: it isn't needed where there is no table. */
  id: string | (() => string);
  parameters: Values;
  outputDirectory: string;
  phase: string;
}

/** The part of a queue that says which tasks rows may belong to. */
type KnownQueue = Pick<Queue, 'tasks' | 'completions'>;

/**
 * Which tasks are completed by rows of tables, as a queue finds out when it starts with them: by the same tables, tasks and rules.
 * Changes nothing.
 * @param project the directory that relative output directories are in
 * @param tell gets what is wrong with tables, for people
 * @param queue has the tasks that are known already: rows may be theirs
 * @returns by the ids of tasks, in which table their row is
 */
export async function findResults(
  project: string,
  sought: Iterable<TaskToMatch>,
  tell: (message: string) => void,
  queue: KnownQueue | null = null,
): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  const isThere = existingTables(project);
  const hasCommon = commonTablePath(resolve(project)) !== null;
  const isNeeded = (outputDirectory: string) => hasCommon || isThere(outputDirectory);
  if (![...new Set(outputDirectoriesOf(sought))].some(isNeeded)) return found;
  let shown = '';
  const source: TaskSource = {
    tasks: () => queue?.tasks() ?? (async function* () {})(),
    completions: async (after, limit) => queue?.completions(after, limit) ?? [],
    importResults: async (rows) => {
      for (const { id } of rows) if (!found.has(id)) found.set(id, shown);
      return rows.map(() => true);
    },
    lookUp: async () => [], // nothing is written
  };
  const tasks = new TasksToMatch(source, project, tell, 'its rows are ignored here');
  for await (const { task, state, sequence } of source.tasks()) {
    const destinations = task.destinations.filter(({ outputDirectory }) => isNeeded(outputDirectory));
    if (destinations.length === 0) continue;
    const number = tasks.add({ ...task, destinations });
    if (state === 'completed') tasks.complete(number, sequence as number);
  }
  for (const { id: given, parameters, outputDirectory, phase } of sought) {
    if (!isNeeded(outputDirectory)) continue;
    const id = typeof given === 'string' ? given : given();
    const destinations = [{ phase, outputDirectory }];
    tasks.add({ id, name: id.slice(0, 14), parameters, command: { words: [] }, destinations }, false);
  }
  // The one in the project's directory comes last: it says less.
  for (const table of [...tasks.tables.values(), ...(tasks.common === null ? [] : [tasks.common])]) {
    shown = table.shown;
    await readTableQuietly(table, table === tasks.common, tell);
  }
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

/** Answers whether there is a table in an output directory, each of which is looked at once. */
function existingTables(project: string): (outputDirectory: string) => boolean {
  const known = new Map<string, boolean>();
  return (outputDirectory) => {
    let isThere = known.get(outputDirectory);
    if (isThere === undefined) {
      isThere = existsSync(tablePath(resolve(project), outputDirectory));
      known.set(outputDirectory, isThere);
    }
    return isThere;
  };
}

/** The columns of the table in an output directory; null: there is none, or it can't be read. */
export async function columnsOfTable(
  project: string,
  outputDirectory: string,
): Promise<readonly string[] | null> {
  try {
    const { bytes } = await readTable({ path: tablePath(project, outputDirectory), project });
    const { text, isCut } = decode(bytes);
    const [header] = [...parseRows(text, isCut)]; // all of it: a damaged table has no columns
    return header === undefined ? [] : headerOf(header);
  } catch {
    return null; // the reader of the rows says why
  }
}

/** Tasks of larger sweeps are not compared with tables: all of them would have to be kept. */
const MAX_TASKS = 1_000_000;

/**
 * Which tasks of a sweep have their rows in tables of results: their ids, and the tables. Only for those who look: nothing is
 * repaired, and a table that can't be read is warned about and passed over.
 */
export async function findCompletedTasks(
  sweep: Sweep,
  project: string,
  queue: KnownQueue | null,
): Promise<ReadonlyMap<string, string>> {
  if (sweep.size > MAX_TASKS) return new Map();
  return findResults(project, { [Symbol.iterator]: () => tasksIn(sweep) }, warn, queue);
}

function* tasksIn(sweep: Sweep): Generator<TaskToMatch> {
  for (const { parameters, outputDirectory, phase } of sweep.tasks()) {
    yield { id: () => taskId(parameters), parameters, outputDirectory, phase };
  }
}
