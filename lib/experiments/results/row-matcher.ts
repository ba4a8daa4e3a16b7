import { sanitize } from '../../platform/index.ts';
import { type Destination, Literal, stringifyValue, type Value, type Values } from '../task/index.ts';
import {
  cellText,
  columnOf,
  NAME_COLUMN,
  normalizeCell,
  normalizeValue,
  withDestination,
} from './cell-value.ts';

/** The task whose result a row is: one, none, or several that can't be told apart. */
export type Match =
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

const SEED = 'seed';
/** No cell has it: files with NUL bytes are refused. */
const SEPARATOR = '\u0000';
/** Rows with gaps are looked up by which cells they have: so many kinds of gaps, times groups of tasks, at most. */
const MAX_PATTERNS = 256;
const PAUSE_AFTER = 5_000;

type Tasks = number | number[];

/**
 * Finds the task of a row in a table with certain columns. A row is a task's result if what it says of the task's parameters is
 * so, and if of no other task that can be said. At first, an empty cell must be an absent or empty parameter; if nothing fits
 * then, empty cells say nothing, nor do cells of parameters that only other tasks have. If several tasks fit, the one whose
 * name the row has is meant if it is completed, or if they differ in their seed, with which names end. Otherwise names decide
 * nothing: they are given anew with every new queue. Which gaps keep a row from being evidence is known when all rows have been
 * matched: see `decisiveGaps`.
 */
export class RowMatcher {
  private readonly index: TaskIndex;
  /** Where parameters are in the rows. */
  private readonly columns: readonly { name: string; at: number }[];
  /** The columns in which rows without a name have values: others have written these rows. */
  private readonly filledByOthers: Set<string>;
  private readonly isCompleted: (task: number) => boolean;
  private readonly nameAt: number;
  /** With the place of each column among the parameters of the group; -1: it isn't one. */
  private readonly groups: readonly { id: string; group: TaskGroup; places: readonly number[] }[];
  private readonly exact = new Map<string, Tasks>();
  private readonly patterns = new Map<string, Map<string, Tasks>>();
  private readonly remembered = new Map<string, string>();

  /**
   * @param header the names of the table's columns
   * @param filledByOthers of rows that were matched before; gets more with each row
   * @param isCompleted whether the queue has the result of a task
   */
  static async make(
    index: TaskIndex,
    header: readonly string[],
    filledByOthers = new Set<string>(),
    isCompleted: (task: number) => boolean = () => false,
  ): Promise<RowMatcher> {
    const matcher = new RowMatcher(index, header, filledByOthers, isCompleted);
    let count = 0;
    for (const { group, places } of matcher.groups) {
      for (const { task, normalized } of group.forms()) {
        add(matcher.exact, places.map((at) => normalized[at] ?? '').join(SEPARATOR), task);
        if (++count % PAUSE_AFTER === 0) await new Promise(setImmediate);
      }
    }
    return matcher;
  }

  private constructor(
    index: TaskIndex,
    header: readonly string[],
    filledByOthers: Set<string>,
    isCompleted: (task: number) => boolean,
  ) {
    this.index = index;
    this.filledByOthers = filledByOthers;
    this.isCompleted = isCompleted;
    this.columns = header.flatMap((name, at) => (index.columns.has(name) ? [{ name, at }] : []));
    this.nameAt = header.indexOf(NAME_COLUMN);
    this.groups = [...index.groups].map((group, at) => ({
      id: String(at),
      group,
      places: this.columns.map(({ name }) => group.columns.indexOf(name)),
    }));
  }

  /** Whether the table has any column by which rows could be told apart. */
  get usable(): boolean {
    return this.columns.length > 0 || this.nameAt !== -1;
  }

  match(cells: readonly string[]): Match {
    const normalized = this.columns.map(({ at }) => this.normalize(cells[at]));
    if (!this.isNamed(cells)) {
      for (const [at, text] of normalized.entries())
        if (text !== '') this.filledByOthers.add(this.columns[at]?.name ?? '');
    }
    const named = this.index.names.get(cells[this.nameAt]?.trim() ?? '') ?? null;
    const parameters = normalized.join(SEPARATOR);
    const fitting = this.exact.get(parameters) ?? null;
    // Without any parameter, every row would fit: then the name has to.
    if (normalized.every((text) => text === '')) {
      return named !== null && includes(fitting, named) ? { kind: 'one', task: named } : { kind: 'none' };
    }
    if (fitting === null) {
      const match = this.decide(this.loosely(normalized), named, parameters);
      return match.kind === 'one' ? { ...match, gaps: this.gapsOf(match.task, normalized) } : match;
    }
    if (named === null || includes(fitting, named) || !this.agrees(named, normalized))
      return this.decide(fitting, named, parameters);
    // The row's name says another task than its cells: that can be this one's row, from when a parameter was a result still.
    const tasks = [named, ...(typeof fitting === 'number' ? [fitting] : fitting)];
    return { kind: 'several', tasks, named, parameters };
  }

  /**
   * The gaps that keep a row from being evidence for the task that it fits; []: none does. The program ran without a parameter
   * that it didn't write, although others did. Rows with a name are ours, and have all parameters of their task; what we add to
   * a table doesn't change what rows of others say.
   */
  decisiveGaps({ gaps = [] }: Match & { kind: 'one' }, cells: readonly string[]): readonly string[] {
    if (this.isNamed(cells)) return gaps;
    return gaps.filter((column) => this.filledByOthers.has(column));
  }

  private decide(fitting: Tasks | null, named: number | null, parameters: string): Match {
    if (fitting === null) return { kind: 'none' };
    if (typeof fitting === 'number') return { kind: 'one', task: fitting };
    const isNamed = named !== null && fitting.includes(named);
    if (isNamed && (this.isCompleted(named) || this.differences(fitting).join() === SEED))
      return { kind: 'one', task: named };
    return { kind: 'several', tasks: fitting, named: null, parameters };
  }

  private isNamed(cells: readonly string[]): boolean {
    return (cells[this.nameAt]?.trim() ?? '') !== '';
  }

  private gapsOf(task: number, normalized: readonly string[]): string[] {
    const group = this.index.groupOf(task) as TaskGroup;
    const [form] = group.formsOf(task);
    return this.columns.flatMap(({ name }, at) => {
      const wanted = form?.normalized[group.columns.indexOf(name)] ?? '';
      return normalized[at] === '' && wanted !== '' && !this.index.labels.has(name) ? [name] : [];
    });
  }

  /** For people: what no task has. */
  whyNone(cells: readonly string[]): string {
    const filled = this.columns.filter(({ at }) => this.normalize(cells[at]) !== '');
    if (filled.length === 0) return 'it has no parameters';
    for (const { name, at } of filled) {
      const wanted = this.normalize(cells[at]);
      if (!this.index.knows(name, wanted)) {
        return `no task of this sweep has ${sanitize(name, 60)} = ${sanitize(cells[at], 60)}`;
      }
    }
    return `no task of this sweep has all of ${filled
      .slice(0, 8)
      .map(({ name, at }) => `${sanitize(name, 60)} = ${sanitize(cells[at], 60)}`)
      .join(', ')}`;
  }

  /** For people: the parameters in which the tasks differ; [] where they don't have the same ones. */
  differences(tasks: readonly number[]): string[] {
    const group = this.index.groupOf(tasks[0] as number) as TaskGroup;
    if (!tasks.every((task) => group.has(task))) return [];
    const [first, ...others] = tasks.map((task) => group.formsOf(task)[0]?.normalized ?? []);
    return group.columns.filter((_, at) => others.some((normalized) => normalized[at] !== first?.[at]));
  }

  private loosely(normalized: readonly string[]): Tasks | null {
    let found: Tasks | null = null;
    // Most rows of others have a value that no task has: then only tasks without that parameter are left.
    const unknown = normalized.findIndex(
      (text, at) => text !== '' && !this.index.knows(this.columns[at]?.name ?? '', text),
    );
    for (const { id, group, places } of this.groups) {
      if (unknown !== -1 && places[unknown] !== -1) continue;
      let pattern = id;
      let key = '';
      for (let at = 0; at < normalized.length; at++) {
        if (places[at] === -1 || normalized[at] === '') continue;
        pattern += `,${at}`;
        key += normalized[at] + SEPARATOR;
      }
      if (key === '') continue;
      const more = this.byPattern(pattern, group, places, normalized)?.get(key);
      if (more !== undefined) found = found === null ? more : [found, more].flat();
    }
    return found;
  }

  /** The tasks of a group by those of their parameters that the row has. null: too many kinds of gaps. */
  private byPattern(
    pattern: string,
    group: TaskGroup,
    places: readonly number[],
    normalized: readonly string[],
  ): Map<string, Tasks> | null {
    let map = this.patterns.get(pattern);
    if (map !== undefined || this.patterns.size >= MAX_PATTERNS) return map ?? null;
    map = new Map();
    this.patterns.set(pattern, map);
    const told = places.filter((inTask, at) => inTask !== -1 && normalized[at] !== '');
    for (const form of group.forms()) {
      add(map, told.map((inTask) => form.normalized[inTask] + SEPARATOR).join(''), form.task);
    }
    return map;
  }

  /** Whether nothing in the row is against the task. */
  private agrees(task: number, normalized: readonly string[]): boolean {
    const group = this.index.groupOf(task) as TaskGroup;
    const places = this.columns.map(({ name }) => group.columns.indexOf(name));
    return group
      .formsOf(task)
      .some((form) =>
        places.every(
          (inTask, at) =>
            inTask === -1 || normalized[at] === '' || form.normalized[inTask] === normalized[at],
        ),
      );
  }

  private normalize(cell: string | undefined): string {
    if (cell === undefined || cell === '') return '';
    return remembered(this.remembered, cell, () => normalizeCell(cell));
  }
}

function includes(tasks: Tasks | null, task: number): boolean {
  return typeof tasks === 'number' ? tasks === task : (tasks?.includes(task) ?? false);
}

function add(map: Map<string, Tasks>, key: string, task: number): void {
  const there = map.get(key);
  if (there === undefined) map.set(key, task);
  else if (typeof there === 'number') {
    if (there !== task) map.set(key, [there, task]);
  } else if (there.at(-1) !== task) there.push(task);
}

/** Cells whose normalized text is remembered, since most repeat. */
const MAX_REMEMBERED = 20_000;

/** The tasks that have one output directory, by the numbers that the caller gives them. */
export class TaskIndex {
  /** The columns of all parameters, in the order of their first appearance, and the normalized texts of what tasks have in them. */
  readonly columns = new Map<string, Set<string>>();
  readonly names = new Map<string, number>();
  /** The columns that say where a row belongs, and are no parameters. */
  readonly labels = new Set<string>();
  private readonly byParameters = new Map<string, TaskGroup>();
  /** Each text once, since values repeat. */
  private readonly texts = new Map<string, string>();
  /** Meanings of lists and maps by their text, and of cells. */
  private readonly normalized = new Map<string, string>();
  private readonly cells = new Map<string, string>();

  get isEmpty(): boolean {
    return this.byParameters.size === 0;
  }

  get groups(): Iterable<TaskGroup> {
    return this.byParameters.values();
  }

  /** @param destination in a table for all output directories: rows may say it */
  add(task: number, own: Values, name: string | null, destination?: Destination): void {
    const parameters = destination === undefined ? own : withDestination(own, destination);
    for (const key of Object.keys(parameters)) if (!Object.hasOwn(own, key)) this.labels.add(columnOf(key));
    const keys = Object.keys(parameters).sort();
    const group = this.groupWith(keys, parameters);
    const values = keys.map((key) => parameters[key] ?? null);
    const written = values.map((value) => this.normalize(cellText(value)));
    const meant = values.map((value, at) => this.normalizeParameter(value, written[at] as string));
    const isSame = meant.every((text, at) => text === written[at]);
    for (const form of isSame ? [meant] : [meant, written]) {
      group.add(task, form);
      for (const [at, text] of form.entries()) this.columns.get(group.columns[at] as string)?.add(text);
    }
    if (name !== null) this.names.set(name, task);
  }

  groupOf(task: number): TaskGroup | undefined {
    for (const group of this.groups) if (group.has(task)) return group;
    return undefined;
  }

  /** Whether a task has a parameter of that column with that normalized text. */
  knows(column: string, text: string): boolean {
    return this.columns.get(column)?.has(text) === true;
  }

  private groupWith(keys: readonly string[], parameters: Values): TaskGroup {
    const id = JSON.stringify(keys);
    let group = this.byParameters.get(id);
    if (group === undefined) {
      group = new TaskGroup(keys.map(columnOf));
      this.byParameters.set(id, group);
      for (const column of Object.keys(parameters).map(columnOf)) {
        if (!this.columns.has(column)) this.columns.set(column, new Set());
      }
    }
    return group;
  }

  private normalizeParameter(value: Value, written: string): string {
    if (typeof value === 'string') return written;
    if (typeof value !== 'object' || value instanceof Literal) return this.once(normalizeValue(value));
    return remembered(this.normalized, stringifyValue(value), () => this.once(normalizeValue(value)));
  }

  private normalize(cell: string): string {
    return remembered(this.cells, cell, () => this.once(normalizeCell(cell)));
  }

  private once(text: string): string {
    const known = this.texts.get(text);
    if (known === undefined) this.texts.set(text, text);
    return known ?? text;
  }
}

function remembered(known: Map<string, string>, text: string, find: () => string): string {
  const there = known.get(text);
  if (there !== undefined) return there;
  const found = find();
  if (known.size < MAX_REMEMBERED && text.length < 200) known.set(text, found);
  return found;
}

/** The normalized texts of a task's parameters, in the order of the group's columns. */
interface Form {
  task: number;
  normalized: readonly string[];
}

/**
 * Tasks with the same parameter names. Each has one form or, if its parameters are written otherwise than they mean, two, side
 * by side. Texts are kept in a row, because there may be a million tasks.
 */
class TaskGroup {
  readonly columns: readonly string[];
  /** Per form, the task's. */
  private readonly tasks: number[] = [];
  private readonly normalized: string[] = [];
  private readonly firstOf = new Map<number, number>();

  constructor(columns: readonly string[]) {
    this.columns = columns;
  }

  add(task: number, normalized: readonly string[]): void {
    if (!this.firstOf.has(task)) this.firstOf.set(task, this.tasks.length);
    this.tasks.push(task);
    for (const text of normalized) this.normalized.push(text);
  }

  has(task: number): boolean {
    return this.firstOf.has(task);
  }

  *forms(from = 0): Generator<Form> {
    const width = this.columns.length;
    for (let form = from; form < this.tasks.length; form++) {
      const normalized = this.normalized.slice(form * width, (form + 1) * width);
      yield { task: this.tasks[form] as number, normalized };
    }
  }

  /** The forms of a task that the group has. */
  formsOf(task: number): Form[] {
    const found = [];
    for (const form of this.forms(this.firstOf.get(task))) {
      if (form.task !== task) break;
      found.push(form);
    }
    return found;
  }
}
