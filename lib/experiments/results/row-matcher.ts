import { listWords, sanitize } from '../../platform/index.ts';
import { NAME_COLUMN, normalizeCell } from './cell-value.ts';
import type { CSVRow } from './csv.ts';
import type { TaskGroup, TaskIndex } from './task-index.ts';

/** The task whose result a row is: one, none, or several that can't be told apart. */
type Match =
  /** `gaps`: the columns of the task's parameters in which the row is empty; undefined: it says all that the task has, and no more. */
  | { readonly kind: 'one'; readonly task: number; readonly gaps?: readonly string[] }
  | { readonly kind: 'none' }
  /** `named`: the one of them whose name the row has. `parameters`: equal for rows that say the same of them. */
  | {
      readonly kind: 'several';
      readonly tasks: readonly number[];
      readonly named: number | null;
      readonly parameters: string;
    };

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

/** Facts about tasks that a matcher asks for. */
interface TaskFacts {
  nameOf(task: number): string;
  /** Whether the queue has its result. */
  isCompleted(task: number): boolean;
}

const SEED = 'seed';
/** No cell has it: files with NUL bytes are refused. */
const SEPARATOR = '\u0000';
/** Rows with gaps are looked up by which cells they have: so many kinds of gaps, times groups of tasks, at most. */
const MAX_PATTERNS = 256;
const PAUSE_AFTER = 5_000;
const NAMED_AT_MOST = 3;

type Tasks = readonly number[];

/**
 * Finds the task of a row in a table with certain columns. A row is a task's result if what it says of the task's parameters is
 * so, and if of no other task that can be said. At first, an empty cell must be an absent or empty parameter; if nothing fits
 * then, empty cells say nothing, nor do cells of parameters that only other tasks have. If several tasks fit, the one whose
 * name the row has is meant if it is completed, or if they differ in their seed, with which names end. Otherwise names decide
 * nothing: they are given anew with every new queue. Which gaps keep a row from being evidence is known when all rows have been
 * matched: see `decisiveGaps`.
 */
export class RowMatcher {
  readonly #index: TaskIndex;
  readonly #tasks: TaskFacts;
  /** Where parameters are in the rows. */
  readonly #columns: readonly { name: string; at: number }[];
  /** The columns in which rows without a name have values: others have written these rows. */
  readonly #filledByOthers: Set<string>;
  readonly #nameAt: number;
  /** How many columns the table has. A row that ends before `shortest` has lost cells that matter. */
  readonly #width: number;
  readonly #shortest: number;
  /** With the place of each column among the parameters of the group; -1: it isn't one. */
  readonly #groups: readonly { id: string; group: TaskGroup; places: readonly number[] }[];
  readonly #exact = new Map<string, number[]>();
  readonly #patterns = new Map<string, Map<string, number[]>>();

  /**
   * @param header the names of the table's columns
   * @param filledByOthers of rows that were matched before; gets more with each row
   */
  static async make(
    index: TaskIndex,
    header: readonly string[],
    tasks: TaskFacts = { nameOf: String, isCompleted: () => false },
    filledByOthers = new Set<string>(),
  ): Promise<RowMatcher> {
    const matcher = new RowMatcher(index, header, tasks, filledByOthers);
    let count = 0;
    for (const { group, places } of matcher.#groups) {
      for (const [task, forms] of group.forms) {
        for (const form of forms)
          add(matcher.#exact, places.map((at) => form[at] ?? '').join(SEPARATOR), task);
        if (++count % PAUSE_AFTER === 0) await new Promise(setImmediate);
      }
    }
    return matcher;
  }

  private constructor(
    index: TaskIndex,
    header: readonly string[],
    tasks: TaskFacts,
    filledByOthers: Set<string>,
  ) {
    this.#index = index;
    this.#tasks = tasks;
    this.#filledByOthers = filledByOthers;
    this.#columns = header.flatMap((name, at) => (index.columns.has(name) ? [{ name, at }] : []));
    this.#nameAt = header.indexOf(NAME_COLUMN);
    this.#width = header.length;
    // The last cell of a row that is too short may itself be cut. Rows of workers that append without looking have no cells for
    // columns that were added behind theirs, such as the name's.
    this.#shortest = Math.min(header.length, (this.#columns.at(-1)?.at ?? this.#nameAt) + 2);
    this.#groups = index.groups.map((group, at) => ({
      id: String(at),
      group,
      places: this.#columns.map(({ name }) => group.columns.indexOf(name)),
    }));
  }

  /** Whether the table has any column by which rows could be told apart. */
  get usable(): boolean {
    return this.#columns.length > 0 || this.#nameAt !== -1;
  }

  read(row: CSVRow): Reading {
    const { cells } = row;
    const width = this.#width;
    if (cells.length < this.#shortest)
      return ofNone(() => `this row has ${cells.length} of ${width} cells; complete or remove it.`);
    if (isTooWide(row, width)) {
      return ofNone(
        () =>
          `this row has ${cells.length} cells, but there are ${width} columns: values with commas need quotes.`,
      );
    }
    const match = this.match(cells);
    if (match.kind === 'none')
      return ofNone(() => `this row is not the result of a task: ${this.#whyNone(cells)}. It is kept.`);
    if (match.kind === 'one') return this.#readingOfOne(match, cells);
    const { tasks, named } = match;
    const why = () => {
      const names = tasks.slice(0, NAMED_AT_MOST).map((task) => this.#tasks.nameOf(task));
      const more = tasks.length > NAMED_AT_MOST ? ` and ${tasks.length - NAMED_AT_MOST} more` : '';
      const apart = this.#differences(tasks).map((name) => sanitize(name, 60));
      const missing = apart.length > 0 ? `: ${apart.join(', ')}` : '';
      return `this row fits several tasks (${names.join(', ')}${more}), so it counts for none of them. Fill in the parameters that differ${missing}.`;
    };
    return { owner: named, certain: false, isLoose: false, shared: named === null ? match : null, why };
  }

  match(cells: readonly string[]): Match {
    const normalized = this.#columns.map(({ at }) => normalizeCell(cells[at] ?? ''));
    if (!this.#isNamed(cells)) {
      for (const [at, { name }] of this.#columns.entries())
        if (normalized[at] !== '') this.#filledByOthers.add(name);
    }
    const named = this.#index.names.get(cells[this.#nameAt]?.trim() ?? '') ?? null;
    const parameters = normalized.join(SEPARATOR);
    const fitting = this.#exact.get(parameters) ?? [];
    // Without any parameter, every row would fit: then the name has to.
    if (normalized.every((text) => text === '')) {
      return named !== null && fitting.includes(named) ? { kind: 'one', task: named } : { kind: 'none' };
    }
    if (fitting.length === 0) {
      const match = this.#decide(this.#loosely(normalized), named, parameters);
      return match.kind === 'one' ? { ...match, gaps: this.#gapsOf(match.task, normalized) } : match;
    }
    if (named === null || fitting.includes(named) || !this.#agrees(named, normalized))
      return this.#decide(fitting, named, parameters);
    // The row's name says another task than its cells: that can be this one's row, from when a parameter was a result still.
    return { kind: 'several', tasks: [named, ...fitting], named, parameters };
  }

  /**
   * The program ran without a parameter that it didn't write, although others did: such a gap keeps the row from being evidence. Rows
   * with a name are ours, and have all parameters of their task; what we add to a table doesn't change what rows of others say.
   */
  #readingOfOne({ task, gaps }: Match & { kind: 'one' }, cells: readonly string[]): Reading {
    const isLoose = gaps !== undefined;
    const isNamed = this.#isNamed(cells);
    const decisive = (gaps ?? []).filter((column) => isNamed || this.#filledByOthers.has(column));
    if (decisive.length === 0) return { owner: task, certain: true, isLoose, shared: null, why: () => '' };
    const missing = listWords(decisive.map((name) => sanitize(name, 60)));
    const why = () =>
      `this row says nothing of ${missing}, as other rows do, so it counts for no task. It is kept. If it is the row of a task of this sweep, fill that in.`;
    const shared = { tasks: [task], parameters: `${task} without ${missing}` };
    return { owner: null, certain: false, isLoose, shared, why };
  }

  #decide(fitting: Tasks, named: number | null, parameters: string): Match {
    const [first] = fitting;
    if (first === undefined) return { kind: 'none' };
    if (fitting.length === 1) return { kind: 'one', task: first };
    const isNamed = named !== null && fitting.includes(named);
    if (isNamed && (this.#tasks.isCompleted(named) || this.#differences(fitting).join() === SEED))
      return { kind: 'one', task: named };
    return { kind: 'several', tasks: fitting, named: null, parameters };
  }

  #isNamed(cells: readonly string[]): boolean {
    return (cells[this.#nameAt]?.trim() ?? '') !== '';
  }

  #gapsOf(task: number, normalized: readonly string[]): string[] {
    const { columns, forms } = this.#index.groupOf(task);
    const [form] = forms.get(task) ?? [];
    return this.#columns.flatMap(({ name }, at) => {
      const wanted = form?.[columns.indexOf(name)] ?? '';
      return normalized[at] === '' && wanted !== '' && !this.#index.labels.has(name) ? [name] : [];
    });
  }

  /** For people: what no task has. */
  #whyNone(cells: readonly string[]): string {
    const filled = this.#columns.filter(({ at }) => normalizeCell(cells[at] ?? '') !== '');
    if (filled.length === 0) return 'it has no parameters';
    const shown = ({ name, at }: { name: string; at: number }) =>
      `${sanitize(name, 60)} = ${sanitize(cells[at], 60)}`;
    const odd = filled.find(({ name, at }) => !this.#index.knows(name, normalizeCell(cells[at] ?? '')));
    if (odd !== undefined) return `no task of this sweep has ${shown(odd)}`;
    return `no task of this sweep has all of ${filled.slice(0, 8).map(shown).join(', ')}`;
  }

  /** For people: the parameters in which the tasks differ; [] where they don't have the same ones. */
  #differences(tasks: Tasks): string[] {
    const { columns, forms } = this.#index.groupOf(tasks[0] as number);
    if (!tasks.every((task) => forms.has(task))) return [];
    const [first, ...others] = tasks.map((task) => forms.get(task)?.[0] ?? []);
    return columns.filter((_, at) => others.some((form) => form[at] !== first?.[at]));
  }

  #loosely(normalized: readonly string[]): Tasks {
    const found: number[] = [];
    // Most rows of others have a value that no task has: then only tasks without that parameter are left.
    const unknown = this.#columns.findIndex(
      ({ name }, at) => normalized[at] !== '' && !this.#index.knows(name, normalized[at] as string),
    );
    for (const { id, group, places } of this.#groups) {
      if (unknown !== -1 && places[unknown] !== -1) continue;
      const told = places.flatMap((inTask, at) => (inTask !== -1 && normalized[at] !== '' ? [at] : []));
      if (told.length === 0) continue;
      const key = told.map((at) => normalized[at]).join(SEPARATOR);
      const inTask = told.map((at) => places[at] as number);
      found.push(...(this.#byPattern(`${id},${told}`, group, inTask)?.get(key) ?? []));
    }
    return found;
  }

  /** The tasks of a group by those of their parameters that the row has. null: too many kinds of gaps. */
  #byPattern(pattern: string, { forms }: TaskGroup, told: readonly number[]): Map<string, number[]> | null {
    let map = this.#patterns.get(pattern);
    if (map !== undefined || this.#patterns.size >= MAX_PATTERNS) return map ?? null;
    map = new Map();
    this.#patterns.set(pattern, map);
    for (const [task, each] of forms)
      for (const form of each) add(map, told.map((at) => form[at]).join(SEPARATOR), task);
    return map;
  }

  /** Whether nothing in the row is against the task. */
  #agrees(task: number, normalized: readonly string[]): boolean {
    const { columns, forms } = this.#index.groupOf(task);
    const places = this.#columns.map(({ name }) => columns.indexOf(name));
    return (forms.get(task) ?? []).some((form) =>
      places.every((inTask, at) => inTask === -1 || normalized[at] === '' || form[inTask] === normalized[at]),
    );
  }
}

function ofNone(why: () => string): Reading {
  return { owner: null, certain: false, isLoose: false, shared: null, why };
}

export function isTooWide(row: CSVRow, columns: number): boolean {
  return row.cells.length > columns && row.cells.slice(columns).some((cell) => cell.trim() !== '');
}

function add(map: Map<string, number[]>, key: string, task: number): void {
  const there = map.get(key);
  if (there === undefined) map.set(key, [task]);
  else if (there.at(-1) !== task) there.push(task);
}
