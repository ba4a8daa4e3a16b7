import { sanitize } from '../../platform/index.ts';
import { Literal, type Values } from '../task/index.ts';
import { cellText, columnOf, NAME_COLUMN, normalizeCell, normalizeValue } from './cell-value.ts';
import type { CSVRow } from './csv.ts';

/** The tasks whose rows a table may have, by the numbers that the caller gives them. */
export class TaskIndex {
  /** The columns of all parameters, in the order of their first appearance. */
  readonly columns = new Set<string>();
  readonly names = new Map<string, number>();
  /** Tasks with the same parameters: the columns of these, and the normalized texts that each task has in them. */
  readonly groups = new Map<string, { columns: readonly string[]; texts: Map<number, readonly string[]> }>();

  add(task: number, parameters: Values, name: string | null): void {
    const keys = Object.keys(parameters).sort();
    const id = JSON.stringify(keys);
    let group = this.groups.get(id);
    if (group === undefined) {
      group = { columns: keys.map(columnOf), texts: new Map() };
      this.groups.set(id, group);
      for (const column of Object.keys(parameters).map(columnOf)) this.columns.add(column);
    }
    const texts = keys.map((key) => {
      const value = parameters[key] ?? null;
      return value instanceof Literal ? normalizeValue(value) : normalizeCell(cellText(value));
    });
    group.texts.set(task, texts);
    if (name !== null) this.names.set(name, task);
  }
}

/** The task that a row of a table belongs to. */
export interface Reading {
  /** The task whose result the row is; null: none. */
  owner: number | null;
  /** For people: why it is none. */
  why: () => string;
}

/** No cell has it: files with NUL bytes are refused. */
const SEPARATOR = '\u0000';
const PAUSE_AFTER = 5_000;
const NAMED_AT_MOST = 3;
const SHOWN_AT_MOST = 8;

/**
 * Finds the task of a row in a table with certain columns: every column that is a parameter must agree with the task, where an empty cell is
 * an absent parameter, and exactly one task must fit. Tasks of which the table has all parameters come before others. Their name
 * decides between those that are written alike.
 */
export class RowMatcher {
  readonly #index: TaskIndex;
  readonly #nameOf: (task: number) => string;
  /** Where parameters are in the rows. */
  readonly #columns: readonly { name: string; at: number }[];
  readonly #nameAt: number;
  /** How many columns the table has. A row that ends before `shortest` has lost cells that matter. */
  readonly #width: number;
  readonly #shortest: number;
  /** The tasks by what the table has of their parameters: all of them, or not all. */
  readonly #whole = new Map<string, number[]>();
  readonly #partial = new Map<string, number[]>();

  /** @param header the names of the table's columns */
  static async make(
    index: TaskIndex,
    header: readonly string[],
    nameOf: (task: number) => string = String,
  ): Promise<RowMatcher> {
    const matcher = new RowMatcher(index, header, nameOf);
    let count = 0;
    for (const { columns, texts } of index.groups.values()) {
      const places = matcher.#columns.map(({ name }) => columns.indexOf(name));
      const map = columns.every((name) => header.includes(name)) ? matcher.#whole : matcher.#partial;
      for (const [task, each] of texts) {
        const key = places.map((at) => each[at] ?? '').join(SEPARATOR);
        const there = map.get(key);
        if (there === undefined) map.set(key, [task]);
        else there.push(task);
        if (++count % PAUSE_AFTER === 0) await new Promise(setImmediate);
      }
    }
    return matcher;
  }

  private constructor(index: TaskIndex, header: readonly string[], nameOf: (task: number) => string) {
    this.#index = index;
    this.#nameOf = nameOf;
    this.#columns = header.flatMap((name, at) => (index.columns.has(name) ? [{ name, at }] : []));
    this.#nameAt = header.indexOf(NAME_COLUMN);
    this.#width = header.length;
    // The last cell of a row that is too short may itself be cut. Rows of workers that append without looking have no cells for
    // columns that were added behind theirs, such as the name's.
    this.#shortest = Math.min(header.length, (this.#columns.at(-1)?.at ?? this.#nameAt) + 2);
  }

  /** Whether the table has any column by which rows could be told apart. */
  get usable(): boolean {
    return this.#columns.length > 0 || this.#nameAt !== -1;
  }

  read(row: CSVRow): Reading {
    const { cells } = row;
    const width = this.#width;
    if (cells.length < this.#shortest)
      return ofNone(() => `this row has ${cells.length} of ${width} cells; complete or remove it`);
    if (isTooWide(row, width)) {
      return ofNone(
        () =>
          `this row has ${cells.length} cells, but there are ${width} columns: values with commas need quotes`,
      );
    }
    const fitting = this.match(cells);
    const [owner] = fitting;
    if (owner === undefined)
      return ofNone(() => `this row is not the result of a task: ${this.#whyNone(cells)}`);
    if (fitting.length === 1) return { owner, why: () => '' };
    return ofNone(() => {
      const names = fitting.slice(0, NAMED_AT_MOST).map(this.#nameOf);
      const more = fitting.length > NAMED_AT_MOST ? ` and ${fitting.length - NAMED_AT_MOST} more` : '';
      return `this row fits several tasks (${names.join(', ')}${more}), so it counts for none of them. Fill in the parameters that differ`;
    });
  }

  /** Finds the tasks that a row fits. */
  match(cells: readonly string[]): readonly number[] {
    const normalized = this.#columns.map(({ at }) => normalizeCell(cells[at] ?? ''));
    const key = normalized.join(SEPARATOR);
    const whole = this.#whole.get(key) ?? [];
    const named = this.#index.names.get(cells[this.#nameAt]?.trim() ?? '');
    // Without any parameter, every row would fit: then the name has to.
    if (named !== undefined && whole.includes(named)) return [named];
    if (normalized.every((text) => text === '')) return [];
    return whole.length > 0 ? whole : (this.#partial.get(key) ?? []);
  }

  /** For people: what no task has. */
  #whyNone(cells: readonly string[]): string {
    const isFilled = ({ at }: { at: number }) => normalizeCell(cells[at] ?? '') !== '';
    const filled = this.#columns
      .filter(isFilled)
      .map(({ name, at }) => `${sanitize(name, 60)} = ${sanitize(cells[at], 60)}`);
    if (filled.length === 0) return 'it has no parameters';
    const empty = this.#columns.filter((column) => !isFilled(column)).map(({ name }) => sanitize(name, 60));
    const without = empty.length === 0 ? '' : ` and no ${empty.join(', ')}`;
    return `no task of this sweep has ${filled.slice(0, SHOWN_AT_MOST).join(', ')}${without}`;
  }
}

function ofNone(why: () => string): Reading {
  return { owner: null, why };
}

export function isTooWide(row: CSVRow, columns: number): boolean {
  return row.cells.length > columns && row.cells.slice(columns).some((cell) => cell.trim() !== '');
}
