import { resolve } from 'node:path';
import type { Values } from '../written.ts';
import { Busy, Changed } from './file.ts';
import { shownPath, tablePath } from './paths.ts';
import { Problems } from './problems.ts';
import { Table } from './table.ts';
import { judgeTail } from './tail.ts';

/** A task that may have a row already. */
export interface Sought {
  id: string;
  parameters: Values;
  outputDirectory: string;
  /** If it has one: rows can name it. */
  name?: string;
}

/**
 * Which tasks are completed by rows of tables, as a queue would find out when it starts with them. Changes nothing.
 * @param project the directory that relative output directories are in
 * @param tell gets what is wrong with tables, for people
 * @returns by the ids of tasks, in which table their row is
 */
export async function findResults(
  project: string,
  sought: Iterable<Sought>,
  tell: (message: string) => void,
): Promise<Map<string, string>> {
  const root = resolve(project);
  const problems = new Problems(tell);
  const ids: string[] = [];
  const names: string[] = [];
  const numbers = new Map<string, number>();
  const tables = new Map<string, Table>();
  const paths = new Map<string, string>();
  const found = new Map<string, string>();
  for (const { id, parameters, outputDirectory, name } of sought) {
    let task = numbers.get(id);
    if (task === undefined) {
      task = ids.push(id) - 1;
      names.push(name ?? id.slice(0, 14));
      numbers.set(id, task);
    }
    const path = paths.get(outputDirectory) ?? tablePath(root, outputDirectory);
    paths.set(outputDirectory, path);
    let table = tables.get(path);
    if (table === undefined) {
      const shown = shownPath(root, path);
      const tasks = {
        nameOf: (number: number) => names[number] ?? '',
        isCompleted: () => false,
        adopt: async (rows: readonly { task: number }[]) => {
          for (const row of rows) found.set(ids[row.task] as string, shown);
          return rows.map(() => true);
        },
      };
      table = new Table(path, shown, tasks, problems);
      tables.set(path, table);
    }
    if (!table.index.has(task)) table.index.add(task, parameters, name ?? null);
  }
  for (const table of tables.values()) await look(table, tell);
  return found;
}

async function look(table: Table, tell: (message: string) => void): Promise<void> {
  try {
    await table.refresh({ leftovers: false });
    await judgeTail(table, async function* () {});
  } catch (error) {
    if (!(error instanceof Changed || error instanceof Busy)) throw error;
    tell(`${table.shown}: somebody is changing this file; its rows are not taken into account.`);
  }
}
