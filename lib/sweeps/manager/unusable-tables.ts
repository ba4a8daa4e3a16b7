import { GPUOwnerError } from '../../errors.ts';
import type { Queue, State } from '../queue/index.ts';
import { tablePath, type UnusableTable } from '../tables/index.ts';

/** Tables that can't be used as they are: see `ResultTables.tableState`. */
type UnusableTables = Readonly<Record<'unreadable' | 'unwritable', readonly UnusableTable[]>>;

/**
 * Refuses unreadable tables, unless all their tasks are cancelled; and those to which rows can't be written, if any are to come.
 * @param project the directory that output directories are in @throws ERR_CONFIGURATION
 */
export async function refuseUnusableTables(
  { unreadable, unwritable }: UnusableTables,
  queue: Queue,
  project: string,
): Promise<void> {
  const states: State[] = ['pending', 'active', 'failed', 'completed'];
  const cannotBeRead = await tableOfTasks(unreadable, states, queue, project);
  if (cannotBeRead !== null) {
    const { task, why } = cannotBeRead;
    throw new GPUOwnerError(
      'ERR_CONFIGURATION',
      `a table of results can't be read, so its completed tasks would run again. Repair or move the table, or cancel its tasks (gpu-owner exp cancel ${task} ...), and start again. ${why}`,
    );
  }
  const cannotBeWritten =
    unwritable.find(({ missing }) => missing > 0) ??
    (await tableOfTasks(unwritable, ['pending', 'active'], queue, project));
  if (cannotBeWritten === null) return;
  throw new GPUOwnerError(
    'ERR_CONFIGURATION',
    `no result can be written to a table, so no task was started. Correct the table or move it away, and start again. ${cannotBeWritten.why}`,
  );
}

/** Refuses tables whose rows are still to come. @param tables undefined: another process writes them @throws ERR_CONFIGURATION */
export function refuseToWait(tables: UnusableTables | undefined): void {
  const { unreadable, unwritable } = tables ?? { unreadable: [], unwritable: [] };
  const table = [...unreadable, ...unwritable].find(({ missing }) => missing > 0);
  if (table === undefined) return;
  throw new GPUOwnerError(
    'ERR_CONFIGURATION',
    `no result can be written to a table. The results are kept in the task list. Correct the table or move it away, and start again: its rows are written then. ${table.why}`,
  );
}

/** Finds the first of some tables that has a task in one of these states, and the task's name. */
async function tableOfTasks(
  tables: readonly UnusableTable[],
  states: readonly State[],
  queue: Queue,
  project: string,
): Promise<{ why: string; task: string } | null> {
  if (tables.length === 0) return null;
  for (const state of states) {
    for await (const { task } of queue.tasks({ state })) {
      const paths = task.destinations.map(({ outputDirectory }) => tablePath(project, outputDirectory));
      const found = tables.find(({ path }) => paths.includes(path));
      if (found !== undefined) return { why: found.why, task: task.name };
    }
  }
  return null;
}
