import type { Value, Values } from '../task/index.ts';
import { meaningOfCell, meaningOfValue } from './cell-value.ts';

/** A row that fits several tasks: they differ only in what it doesn't say, such as the seed. */
export interface SharedRow {
  line: number;
  cells: readonly string[];
  result: Values;
  /** The meaning of the result: see `contentOf`. */
  content: string;
  /** For people. */
  why: () => string;
}

interface Group {
  tasks: readonly number[];
  rows: SharedRow[];
  /** Tasks that wrote one of the rows, nobody knows which. At most as many as rows. */
  covered: Set<number>;
}

/** More are not kept in memory, and count for nobody. */
const MAX_ROWS = 10_000;
const MAX_TASKS = 1_000;
/** Digits that a number keeps however often pandas reads and writes it. */
const DIGITS = 12;

/** The rows of a table that fit several tasks, by the tasks. */
export class SharedRows {
  readonly #groups = new Map<string, Group>();
  readonly #byTask = new Map<number, Group[]>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get covered(): number[] {
    return [...this.#groups.values()].flatMap(({ covered }) => [...covered]);
  }

  /** @returns false: there are too many */
  add({ tasks, parameters }: { tasks: readonly number[]; parameters: string }, row: SharedRow): boolean {
    if (tasks.length > MAX_TASKS || this.#size === MAX_ROWS) return false;
    let group = this.#groups.get(parameters);
    if (group === undefined) {
      group = { tasks, rows: [], covered: new Set() };
      this.#groups.set(parameters, group);
      for (const task of tasks) {
        const groups = this.#byTask.get(task);
        if (groups === undefined) this.#byTask.set(task, [group]);
        else groups.push(group);
      }
    }
    group.rows.push(row);
    this.#size++;
    return true;
  }

  fits(task: number): boolean {
    return this.#byTask.has(task);
  }

  /** Finds the rows that fit a task. `spare`: how many of the rows no task is known to have written; `tasks`: all that the rows fit. */
  of(task: number): { rows: SharedRow[]; spare: number; tasks: Set<number> } {
    const groups = this.#byTask.get(task) ?? [];
    return {
      rows: groups.flatMap(({ rows }) => rows),
      spare: groups.reduce((sum, group) => sum + spareOf(group), 0),
      tasks: new Set(groups.flatMap((group) => group.tasks)),
    };
  }

  /** Rows that no task is known to have written. */
  get spare(): { tasks: readonly number[]; rows: readonly SharedRow[] }[] {
    return [...this.#groups.values()]
      .filter(({ rows, covered }) => rows.length > covered.size)
      .map(({ tasks, rows, covered }) => ({ tasks, rows: rows.slice(covered.size) }));
  }

  /** One of the rows is this task's, whichever. @returns false: there is none left */
  cover(task: number): boolean {
    const group = this.#byTask.get(task)?.find((each) => spareOf(each) > 0);
    group?.covered.add(task);
    return group !== undefined;
  }

  /** @returns was it covered? */
  uncover(task: number): boolean {
    return (this.#byTask.get(task) ?? []).some(({ covered }) => covered.delete(task));
  }

  /** The row of a task that has this result, unless it is in `taken`. */
  find(task: number, content: string, taken: ReadonlyMap<number, unknown>): SharedRow | undefined {
    for (const { rows } of this.#byTask.get(task) ?? []) {
      const row = rows.find((each) => each.content === content && !taken.has(each.line));
      if (row !== undefined) return row;
    }
    return undefined;
  }
}

/** Rows without a result are no worker's: they are ours, from which a worker has taken the columns that it doesn't know. */
function spareOf({ rows, covered }: Group): number {
  return rows.filter(({ content }) => content !== '').length - covered.size;
}

/** Equal for results that mean the same, also after a program has read and written the table. '': nothing. */
export function contentOf(result: Values): string {
  const members = Object.entries(result)
    .map(([key, value]): [string, string] => [key, rounded(meaningOfValue(value as Value))])
    .filter(([, meaning]) => meaning !== '' && meaning !== 'NaN')
    .sort(([one], [other]) => (one < other ? -1 : 1));
  return members.length === 0 ? '' : JSON.stringify(members);
}

function rounded(meaning: string): string {
  const number = /^[+-]?[\d.]/.test(meaning) ? Number(meaning) : Number.NaN;
  return Number.isFinite(number) ? meaningOfCell(number.toPrecision(DIGITS)) : meaning;
}
