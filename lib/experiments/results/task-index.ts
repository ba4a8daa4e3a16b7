import { stringify, type Value, type Values, Written } from '../task/index.ts';
import { cellText, meaningOfCell, meaningOfValue } from './meaning.ts';
import { TaskGroup, Texts } from './task-group.ts';

/** The column with the names of tasks. */
export const NAME_COLUMN = 'task_id';

/** The name of a parameter's column. */
export function columnOf(parameter: string): string {
  const name = cellText(parameter).trim();
  return name === NAME_COLUMN || name === '' ? `parameter_${name}` : name;
}

/** Cells whose meaning is remembered, since most repeat. */
export const MOST_REMEMBERED = 20_000;

/** The tasks that have one output directory, by the numbers that the caller gives them. */
export class TaskIndex {
  /** The columns of all parameters, in the order of their first appearance, and the numbers of what tasks have in them. */
  readonly columns = new Map<string, Set<number>>();
  readonly names = new Map<string, number>();
  private readonly byParameters = new Map<string, TaskGroup>();
  private readonly texts = new Texts();
  /** Of lists and maps, by their text; of cells. */
  private readonly meanings = new Map<string, number>();
  private readonly cells = new Map<string, number>();

  get isEmpty(): boolean {
    return this.byParameters.size === 0;
  }

  get groups(): Iterable<TaskGroup> {
    return this.byParameters.values();
  }

  add(task: number, parameters: Values, name: string | null): void {
    const keys = Object.keys(parameters).sort();
    const group = this.groupWith(keys, parameters);
    const values = keys.map((key) => parameters[key] ?? null);
    const written = values.map((value) => this.meaning(cellText(value)));
    const meant = values.map((value, at) => this.meant(value, written[at] as number));
    const isSame = meant.every((meaning, at) => meaning === written[at]);
    for (const form of isSame ? [meant] : [meant, written]) {
      group.add(task, form);
      for (const [at, meaning] of form.entries()) {
        this.columns.get(group.columns[at] as string)?.add(meaning);
      }
    }
    if (name !== null) this.names.set(name, task);
  }

  has(task: number): boolean {
    return this.groupOf(task) !== undefined;
  }

  groupOf(task: number): TaskGroup | undefined {
    for (const group of this.groups) if (group.has(task)) return group;
    return undefined;
  }

  /** Whether a task has a parameter of that column with that meaning. */
  knows(column: string, meaning: string): boolean {
    const number = this.texts.numberOf(meaning);
    return number !== undefined && this.columns.get(column)?.has(number) === true;
  }

  private groupWith(keys: readonly string[], parameters: Values): TaskGroup {
    const id = JSON.stringify(keys);
    let group = this.byParameters.get(id);
    if (group === undefined) {
      group = new TaskGroup(keys.map(columnOf), this.texts);
      this.byParameters.set(id, group);
      for (const column of Object.keys(parameters).map(columnOf)) {
        if (!this.columns.has(column)) this.columns.set(column, new Set());
      }
    }
    return group;
  }

  private meant(value: Value, written: number): number {
    if (typeof value === 'string') return written;
    if (typeof value !== 'object' || value instanceof Written) return this.texts.add(meaningOfValue(value));
    return remembered(this.meanings, stringify(value), () => this.texts.add(meaningOfValue(value)));
  }

  private meaning(cell: string): number {
    return remembered(this.cells, cell, () => this.texts.add(meaningOfCell(cell)));
  }
}

function remembered(known: Map<string, number>, text: string, find: () => number): number {
  let number = known.get(text);
  if (number === undefined) {
    number = find();
    if (known.size < MOST_REMEMBERED) known.set(text, number);
  }
  return number;
}
