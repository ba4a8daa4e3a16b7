import { stringify, type Value, type Values, Written } from '../written.ts';
import { cellText, meaningOfCell, meaningOfValue } from './meaning.ts';

/** The column with the names of tasks. */
export const NAME_COLUMN = 'task_id';

/** The name of a parameter's column. */
export function columnOf(parameter: string): string {
  const name = cellText(parameter).trim();
  return name === NAME_COLUMN || name === '' ? `parameter_${name}` : name;
}

/** Tasks with the same parameter names. */
export interface Group {
  columns: readonly string[];
  /** Per task the meanings of its parameters, in the order of `columns`: once or, if they are written otherwise than they mean, twice. */
  tasks: { task: number; forms: (readonly string[])[] }[];
}

/** Cells whose meaning is remembered, since most repeat. */
export const MOST_REMEMBERED = 20_000;

/** The tasks that have one output directory, by the numbers that the caller gives them. */
export class TaskIndex {
  /** The columns of all parameters, in the order of their first appearance, and what tasks have in them. */
  readonly columns = new Map<string, Set<string>>();
  readonly names = new Map<string, number>();
  readonly groups = new Map<string, Group>();
  size = 0;
  /** Values repeat: each is kept once. */
  private readonly known = new Map<string, string>();
  /** Of lists and maps, by their text; of cells. */
  private readonly meanings = new Map<string, string>();
  private readonly cells = new Map<string, string>();
  private readonly groupOf = new Map<number, { group: Group; at: number }>();

  add(task: number, parameters: Values, name: string | null): void {
    const keys = Object.keys(parameters).sort();
    const id = JSON.stringify(keys);
    let group = this.groups.get(id);
    if (group === undefined) {
      group = { columns: keys.map(columnOf), tasks: [] };
      this.groups.set(id, group);
      for (const column of Object.keys(parameters).map(columnOf)) {
        if (!this.columns.has(column)) this.columns.set(column, new Set());
      }
    }
    const values = keys.map((key) => parameters[key] ?? null);
    const written = values.map((value) => this.meaning(cellText(value)));
    const meant = values.map((value, at) => this.meant(value, written[at] as string));
    const forms = meant.every((meaning, at) => meaning === written[at]) ? [meant] : [meant, written];
    for (const form of forms) {
      for (const [at, meaning] of form.entries()) {
        this.columns.get(group.columns[at] as string)?.add(meaning);
      }
    }
    this.groupOf.set(task, { group, at: group.tasks.length });
    group.tasks.push({ task, forms });
    if (name !== null) this.names.set(name, task);
    this.size++;
  }

  has(task: number): boolean {
    return this.groupOf.has(task);
  }

  /** What is known of a task, per column. */
  formsOf(task: number): { columns: readonly string[]; forms: readonly (readonly string[])[] } {
    const { group, at } = this.groupOf.get(task) as { group: Group; at: number };
    return { columns: group.columns, forms: group.tasks[at]?.forms ?? [] };
  }

  private meant(value: Value, written: string): string {
    if (typeof value === 'string') return written;
    if (typeof value !== 'object' || value instanceof Written) return this.keep(meaningOfValue(value));
    const text = stringify(value);
    const known = this.meanings.get(text) ?? meaningOfValue(value);
    if (this.meanings.size < MOST_REMEMBERED) this.meanings.set(text, known);
    return this.keep(known);
  }

  private meaning(cell: string): string {
    let meaning = this.cells.get(cell);
    if (meaning === undefined) {
      meaning = this.keep(meaningOfCell(cell));
      if (this.cells.size < MOST_REMEMBERED) this.cells.set(cell, meaning);
    }
    return meaning;
  }

  private keep(text: string): string {
    const known = this.known.get(text);
    if (known !== undefined) return known;
    this.known.set(text, text);
    return text;
  }
}
