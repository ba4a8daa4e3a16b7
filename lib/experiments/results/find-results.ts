import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { warn } from '../../platform/index.ts';
import type { Queue } from '../queue/index.ts';
import type { Sweep } from '../sweep/index.ts';
import { taskId, type Values } from '../task/index.ts';
import { PAGE } from './known-tasks.ts';
import { commonTablePath, FileBusyError, FileChangedError, shownPath, tablePath } from './safe-file.ts';
import { Problems, Table } from './table.ts';
import { readTable } from './table-reader.ts';
import { judgePartialLine, type PendingRow, whyNothingCanBeWritten } from './table-writer.ts';

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
  sought: Iterable<Sought>,
  tell: (message: string) => void,
  queue: KnownQueue | null = null,
): Promise<Map<string, string>> {
  const tables = new LookedAtTables(project, sought, tell, queue !== null);
  if (tables.isEmpty) return tables.found;
  if (queue !== null) {
    for await (const { task, state } of queue.tasks()) {
      const { id, name, parameters } = task;
      for (const destination of task.destinations) tables.add({ id, name, parameters, ...destination });
      if (state === 'completed' || state === 'active') tables.noteEnded(id);
    }
  }
  for (const task of sought) tables.add(task);
  await tables.look(queue);
  return tables.found;
}

/** The tables that are there for some tasks, which are only looked at. */
class LookedAtTables {
  /** By the ids of tasks, the tables that have their rows. */
  readonly found = new Map<string, string>();
  readonly #project: string;
  readonly #tell: (message: string) => void;
  readonly #problems: Problems;
  /** Whether tasks may have written rows. */
  readonly #mayWrite: boolean;
  readonly #ids: string[] = [];
  readonly #names: string[] = [];
  readonly #numbers = new Map<string, number>();
  /** Tasks that were completed, or run. */
  readonly #ended = new Set<number>();
  /** The one in the project's directory, unless that is an output directory. */
  #common: Table | null;
  readonly #tables = new Map<string, Table>();
  /** By output directories. */
  readonly #places = new Map<string, Table>();

  constructor(project: string, sought: Iterable<Sought>, tell: (message: string) => void, mayWrite: boolean) {
    this.#project = resolve(project);
    this.#tell = tell;
    this.#problems = new Problems(tell, 'its rows are ignored here');
    this.#mayWrite = mayWrite;
    const common = commonTablePath(this.#project);
    this.#common = common === null ? null : this.#tableAt(common);
    let last: string | null = null;
    for (const { outputDirectory } of sought) {
      if (outputDirectory === last) continue;
      last = outputDirectory;
      if (this.#places.has(outputDirectory)) continue;
      const path = tablePath(this.#project, outputDirectory);
      if (existsSync(path)) this.#places.set(outputDirectory, this.#tableAt(path));
    }
    if ([...this.#places.values()].some((table) => table === this.#common)) this.#common = null;
  }

  get isEmpty(): boolean {
    return this.#tables.size === 0;
  }

  #tableAt(path: string): Table {
    const known = this.#tables.get(path);
    if (known !== undefined) return known;
    const shown = shownPath(this.#project, path);
    const tasks = {
      nameOf: (number: number) => this.#names[number] ?? '',
      isCompleted: () => false,
      mayWrite: this.#mayWrite,
      importResults: async (rows: readonly { task: number }[]) => {
        for (const row of rows) {
          const id = this.#ids[row.task] as string;
          if (!this.found.has(id)) this.found.set(id, shown);
        }
        return rows.map(() => true);
      },
    };
    const table = new Table({ path, project: this.#project }, shown, tasks, this.#problems);
    this.#tables.set(path, table);
    return table;
  }

  add({ id: given, parameters, outputDirectory, phase, name }: Sought): void {
    const table = this.#places.get(outputDirectory);
    if (table === undefined && this.#common === null) return;
    const id = typeof given === 'string' ? given : given();
    let task = this.#numbers.get(id);
    if (task === undefined) {
      task = this.#ids.push(id) - 1;
      this.#names.push(name ?? id.slice(0, 14));
      this.#numbers.set(id, task);
    }
    if (table !== undefined && !table.index.has(task)) table.index.add(task, parameters, name ?? null);
    this.#common?.index.add(task, parameters, name ?? null, { phase, outputDirectory });
  }

  noteEnded(id: string): void {
    const task = this.#numbers.get(id);
    if (task !== undefined) this.#ended.add(task);
  }

  async look(queue: KnownQueue | null): Promise<void> {
    // The one in the project's directory comes last: it says less.
    const tables = [...this.#tables.values()].sort(
      (one, other) => Number(one === this.#common) - Number(other === this.#common),
    );
    for (const table of tables) {
      await this.#lookAt(table, queue);
      if (!this.#mayWrite) continue;
      for (const { tasks } of table.shared.spare) {
        for (const task of tasks)
          if (this.#ended.has(task) && !table.rows.has(task)) table.shared.cover(task);
      }
      table.tellShared(0);
    }
  }

  async #lookAt(table: Table, queue: KnownQueue | null): Promise<void> {
    try {
      await table.refresh({ leftovers: false });
      await judgePartialLine(table, (only) => this.#results(queue, only));
      const why = table === this.#common ? null : whyNothingCanBeWritten(table);
      if (why !== null) this.#tell(`${why}. Until you correct the file, exp run starts none of its tasks.`);
    } catch (error) {
      if (!(error instanceof FileChangedError || error instanceof FileBusyError)) throw error;
      this.#tell(`${table.shown}: somebody is changing this file; its rows are ignored.`);
    }
  }

  /** The results of completed tasks of the queue. */
  async *#results(
    queue: KnownQueue | null,
    only: (task: number) => boolean,
  ): AsyncGenerator<readonly PendingRow[]> {
    for (let cursor = 0; queue !== null; ) {
      const page = await queue.completions(cursor, PAGE);
      const last = page.at(-1);
      if (last === undefined) return;
      cursor = last.sequence;
      yield page.flatMap((completion) => {
        const task = this.#numbers.get(completion.task.id);
        return task !== undefined && only(task) ? [{ task, completion }] : [];
      });
    }
  }
}

/** The columns of the table in an output directory; null: there is none, or it can't be read. */
export async function columnsOfTable(
  project: string,
  outputDirectory: string,
): Promise<readonly string[] | null> {
  const path = tablePath(project, outputDirectory);
  if (!existsSync(path)) return null;
  const nothing = async () => {};
  return readTable({ path, project }, nothing, nothing).then(
    ({ header }) => header,
    () => null, // whoever reads its rows says why
  );
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
  return findResults(project, { [Symbol.iterator]: () => soughtIn(sweep) }, warn, queue);
}

function* soughtIn(sweep: Sweep): Generator<Sought> {
  for (const { parameters, outputDirectory, phase } of sweep.tasks()) {
    yield { id: () => taskId(parameters), parameters, outputDirectory, phase };
  }
}
