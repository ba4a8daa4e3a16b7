import type { Values } from '../task/index.ts';

/** A row that fits several tasks: they differ only in what it doesn't say, such as the seed. */
export interface UnassignedRow {
  line: number;
  cells: readonly string[];
  result: Values;
  /** The normalized result: see `contentOf`. */
  content: string;
  /** For people. */
  why: () => string;
}

interface Group {
  tasks: readonly number[];
  rows: UnassignedRow[];
  /** Tasks that wrote one of the rows, unknown which. At most as many as rows. */
  assigned: Set<number>;
}

/** More are not kept in memory, and count for no task. */
const MAX_ROWS = 10_000;
const MAX_TASKS = 1_000;

/** The rows of a table that fit several tasks, by the tasks. */
export class UnassignedRows {
  readonly #groups = new Map<string, Group>();
  readonly #byTask = new Map<number, Group[]>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** The tasks that wrote one of the rows. */
  get assigned(): number[] {
    return [...this.#groups.values()].flatMap(({ assigned }) => [...assigned]);
  }

  /** @returns false: there are too many */
  add({ tasks, parameters }: { tasks: readonly number[]; parameters: string }, row: UnassignedRow): boolean {
    if (tasks.length > MAX_TASKS || this.#size === MAX_ROWS) return false;
    let group = this.#groups.get(parameters);
    if (group === undefined) {
      group = { tasks, rows: [], assigned: new Set() };
      this.#groups.set(parameters, group);
      for (const task of tasks) this.#byTask.set(task, [...this.#groupsOf(task), group]);
    }
    group.rows.push(row);
    this.#size++;
    return true;
  }

  #groupsOf(task: number): readonly Group[] {
    return this.#byTask.get(task) ?? [];
  }

  fits(task: number): boolean {
    return this.#byTask.has(task);
  }

  /** Finds the rows that fit a task. `left`: how many of them no task is known to have written; `tasks`: all that the rows fit. */
  of(task: number): { rows: UnassignedRow[]; left: number; tasks: Set<number> } {
    const groups = this.#groupsOf(task);
    return {
      rows: groups.flatMap(({ rows }) => rows),
      left: groups.reduce((sum, group) => sum + leftIn(group), 0),
      tasks: new Set(groups.flatMap((group) => group.tasks)),
    };
  }

  /** Rows that no task is known to have written. */
  get left(): { tasks: readonly number[]; rows: readonly UnassignedRow[] }[] {
    return [...this.#groups.values()]
      .filter(({ rows, assigned }) => rows.length > assigned.size)
      .map(({ tasks, rows, assigned }) => ({ tasks, rows: rows.slice(assigned.size) }));
  }

  /** One of the rows is this task's, whichever. @returns false: there is none left */
  assign(task: number): boolean {
    const group = this.#groupsOf(task).find((each) => leftIn(each) > 0);
    group?.assigned.add(task);
    return group !== undefined;
  }

  /** @returns whether it had one */
  unassign(task: number): boolean {
    return this.#groupsOf(task).some(({ assigned }) => assigned.delete(task));
  }

  /** The row of a task that has this result, unless it is in `taken`. */
  find(task: number, content: string, taken: ReadonlyMap<number, unknown>): UnassignedRow | undefined {
    return this.#groupsOf(task)
      .flatMap(({ rows }) => rows)
      .find((row) => row.content === content && !taken.has(row.line));
  }
}

/** Rows without a result are no worker's: they are ours, from which a worker has taken the columns that it doesn't know. */
function leftIn({ rows, assigned }: Group): number {
  return rows.filter(({ content }) => content !== '').length - assigned.size;
}
