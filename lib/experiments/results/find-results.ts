import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { warn } from '../../platform/index.ts';
import type { Queue } from '../queue/index.ts';
import type { Sweep } from '../sweep/index.ts';
import { taskId, type Values } from '../task/index.ts';
import { withDestination } from './cell-value.ts';
import { commonTablePath, FileBusyError, FileChangedError, shownPath, tablePath } from './safe-file.ts';
import { Problems, Table } from './table.ts';
import { judgePartialLine } from './table-writer.ts';

/** A task that may have a row already. */
interface Sought {
  /** Its id, or who knows it: it isn't needed where there is no table. */
  id: string | (() => string);
  parameters: Values;
  outputDirectory: string;
  phase: string;
  /** If it has one: rows can name it. */
  name?: string;
}

/**
 * Which tasks are completed by rows of tables, as a queue would find out when it starts with them. Changes nothing.
 * @param project the directory that relative output directories are in
 * @param tell gets what is wrong with tables, for people
 * @param isEnded of tasks that a row fits: whether it may be theirs, since they were completed, or run. Default: none was
 * @returns by the ids of tasks, in which table their row is
 */
export async function findResults(
  project: string,
  sought: Iterable<Sought>,
  tell: (message: string) => void,
  isEnded?: (ids: readonly string[]) => Promise<readonly boolean[]>,
): Promise<Map<string, string>> {
  const root = resolve(project);
  const problems = new Problems(tell, 'its rows are ignored here');
  const ids: string[] = [];
  const names: string[] = [];
  const numbers = new Map<string, number>();
  const tables = new Map<string, Table>();
  /** null: there is no table. */
  const paths = new Map<string, string | null>();
  const found = new Map<string, string>();
  const tableAt = (path: string): Table => {
    const shown = shownPath(root, path);
    const tasks = {
      nameOf: (number: number) => names[number] ?? '',
      isCompleted: () => false,
      mayWrite: isEnded !== undefined,
      importResults: async (rows: readonly { task: number }[]) => {
        for (const row of rows) {
          const id = ids[row.task] as string;
          if (!found.has(id)) found.set(id, shown);
        }
        return rows.map(() => true);
      },
    };
    return new Table({ path, project: root }, shown, tasks, problems);
  };
  const commonPath = commonTablePath(root);
  const common = commonPath === null ? null : tableAt(commonPath);
  for (const { id: given, parameters, outputDirectory, phase, name } of sought) {
    let path = paths.get(outputDirectory);
    if (path === undefined) {
      path = tablePath(root, outputDirectory);
      if (!existsSync(path)) path = null;
      paths.set(outputDirectory, path);
    }
    if (path === null && common === null) continue;
    const id = typeof given === 'string' ? given : given();
    let task = numbers.get(id);
    if (task === undefined) {
      task = ids.push(id) - 1;
      names.push(name ?? id.slice(0, 14));
      numbers.set(id, task);
    }
    common?.index.add(task, withDestination(parameters, { phase, outputDirectory }), name ?? null);
    if (path === null) continue;
    const table = tables.get(path) ?? tableAt(path);
    tables.set(path, table);
    if (!table.index.has(task)) table.index.add(task, parameters, name ?? null);
  }
  if (common !== null && !tables.has(common.path)) tables.set(common.path, common);
  for (const table of tables.values()) {
    await look(table, tell);
    if (isEnded === undefined) continue;
    for (const { tasks } of table.shared.spare) {
      const ended = await isEnded(tasks.map((task) => ids[task] as string));
      for (const [at, task] of tasks.entries())
        if (ended[at] && !table.rows.has(task)) table.shared.cover(task);
    }
    table.tellShared(0);
  }
  return found;
}

async function look(table: Table, tell: (message: string) => void): Promise<void> {
  try {
    await table.refresh({ leftovers: false });
    await judgePartialLine(table, async function* () {});
  } catch (error) {
    if (!(error instanceof FileChangedError || error instanceof FileBusyError)) throw error;
    tell(`${table.shown}: somebody is changing this file; its rows are ignored.`);
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
  queue: Pick<Queue, 'lookUp'> | null,
): Promise<ReadonlyMap<string, string>> {
  if (sweep.size > MAX_TASKS) return new Map();
  const isEnded = async (ids: readonly string[]) => {
    const rows = queue === null ? [] : await queue.lookUp(ids);
    return rows.map((row) => row?.state === 'completed' || row?.state === 'active');
  };
  return findResults(project, soughtIn(sweep), warn, isEnded);
}

function* soughtIn(sweep: Sweep): Generator<Sought> {
  for (const { parameters, outputDirectory, phase } of sweep.tasks()) {
    yield { id: () => taskId(parameters), parameters, outputDirectory, phase };
  }
}
