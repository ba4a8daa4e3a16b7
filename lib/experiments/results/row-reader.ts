import { listWords, sanitize } from '../../platform/index.ts';
import type { Values } from '../task/index.ts';
import { NAME_COLUMN } from './cell-value.ts';
import type { CSVRow } from './csv.ts';
import type { Match, RowMatcher, TaskIndex } from './row-matcher.ts';

/** The task that a row of a table belongs to. */
export interface Reading {
  /** The task that has this row; no other is written for it. null: none. */
  owner: number | null;
  /** Whether it is that task's result beyond doubt. */
  certain: boolean;
  /** The row fits with gaps, or with more than the task has: rows without any win over it. */
  isLoose: boolean;
  /** The row fits these tasks, and nothing in it decides between them. Rows with equal `parameters` fit the same. */
  shared: { tasks: readonly number[]; parameters: string } | null;
  /** For people: why it isn't. */
  why: () => string;
}

const NAMED_AT_MOST = 3;

/** Reads rows of one table. */
export class RowReader {
  private readonly matcher: RowMatcher;
  private readonly columns: number;
  /** A row that ends before this has lost cells that matter. */
  private readonly shortest: number;
  private readonly nameOf: (task: number) => string;

  constructor(
    matcher: RowMatcher,
    index: TaskIndex,
    header: readonly string[],
    nameOf: (task: number) => string,
  ) {
    this.matcher = matcher;
    this.columns = header.length;
    // The last cell of a row that is too short may itself be cut. Rows of workers that append without looking have no cells for
    // columns that were added behind theirs, such as the name's.
    const last = header.findLastIndex((name) => index.columns.has(name));
    this.shortest = Math.min(header.length, (last === -1 ? header.indexOf(NAME_COLUMN) : last) + 2);
    this.nameOf = nameOf;
  }

  read(row: CSVRow): Reading {
    const { cells } = row;
    const { columns } = this;
    if (cells.length < this.shortest)
      return ofNone(() => `this row has ${cells.length} of ${columns} cells; complete or remove it.`);
    if (isTooWide(row, columns)) {
      return ofNone(
        () =>
          `this row has ${cells.length} cells, but there are ${columns} columns: values with commas need quotes.`,
      );
    }
    const match = this.matcher.match(cells);
    if (match.kind === 'one') return this.readingOfOne(match, cells);
    if (match.kind === 'none')
      return ofNone(
        () => `this row is not the result of a task: ${this.matcher.whyNone(cells)}. It is kept.`,
      );
    const { tasks, named } = match;
    const why = () => {
      const names = tasks.slice(0, NAMED_AT_MOST).map((task) => this.nameOf(task));
      const more = tasks.length > NAMED_AT_MOST ? ` and ${tasks.length - NAMED_AT_MOST} more` : '';
      const apart = this.matcher.differences(tasks).map((name) => sanitize(name, 60));
      const missing = apart.length > 0 ? `: ${apart.join(', ')}` : '';
      return `this row fits several tasks (${names.join(', ')}${more}), so it counts for none of them. Fill in the parameters that differ${missing}.`;
    };
    return { owner: named, certain: false, isLoose: false, shared: named === null ? match : null, why };
  }

  private readingOfOne(match: Match & { kind: 'one' }, cells: readonly string[]): Reading {
    const { task, gaps } = match;
    const isLoose = gaps !== undefined;
    const decisive = this.matcher.decisiveGaps(match, cells);
    if (decisive.length === 0) return { owner: task, certain: true, isLoose, shared: null, why: () => '' };
    const missing = listWords(decisive.map((name) => sanitize(name, 60)));
    const why = () =>
      `this row says nothing of ${missing}, as other rows do, so it counts for no task. It is kept. If it is the row of a task of this sweep, fill that in.`;
    const shared = { tasks: [task], parameters: `${task} without ${missing}` };
    return { owner: null, certain: false, isLoose, shared, why };
  }
}

export function isTooWide(row: CSVRow, columns: number): boolean {
  return row.cells.length > columns && row.cells.slice(columns).some((cell) => cell.trim() !== '');
}

function ofNone(why: () => string): Reading {
  return { owner: null, certain: false, isLoose: false, shared: null, why };
}

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
