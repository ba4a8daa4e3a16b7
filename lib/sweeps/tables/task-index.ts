import type { Values } from '../task/index.ts';
import { cellText, columnOf, normalizeCell, normalizeValue } from './cell-value.ts';

/** Tasks with the same parameter names. */
export interface TaskGroup {
  readonly columns: readonly string[];
  /**
   * The normalized texts of the parameters of each task, in the order of the columns: one form or, if the parameters are written
   * otherwise than they mean, two.
   */
  readonly forms: Map<number, (readonly string[])[]>;
}

/** The tasks whose rows a table may have, by the numbers that the caller gives them. */
export class TaskIndex {
  /** The columns of all parameters, in the order of their first appearance, and the normalized texts of what tasks have in them. */
  readonly columns = new Map<string, Set<string>>();
  readonly names = new Map<string, number>();
  readonly #groups = new Map<string, TaskGroup>();

  get groups(): readonly TaskGroup[] {
    return [...this.#groups.values()];
  }

  add(task: number, parameters: Values, name: string | null): void {
    const keys = Object.keys(parameters).sort();
    const { columns, forms } = this.#groupWith(keys, parameters);
    const values = keys.map((key) => parameters[key] ?? null);
    const written = values.map((value) => normalizeCell(cellText(value)));
    const meant = values.map((value, at) =>
      typeof value === 'string' ? (written[at] as string) : normalizeValue(value),
    );
    // The text of the cell, if it is the same: many tasks share that string.
    const fresh = meant.every((text, at) => text === written[at]) ? [written] : [meant, written];
    forms.set(task, fresh);
    for (const form of fresh)
      for (const [at, text] of form.entries()) this.columns.get(columns[at] as string)?.add(text);
    if (name !== null) this.names.set(name, task);
  }

  /** Whether a task has a parameter of that column with that normalized text. */
  knows(column: string, text: string): boolean {
    return this.columns.get(column)?.has(text) === true;
  }

  #groupWith(keys: readonly string[], parameters: Values): TaskGroup {
    const id = JSON.stringify(keys);
    let group = this.#groups.get(id);
    if (group === undefined) {
      group = { columns: keys.map(columnOf), forms: new Map() };
      this.#groups.set(id, group);
      for (const column of Object.keys(parameters).map(columnOf)) {
        if (!this.columns.has(column)) this.columns.set(column, new Set());
      }
    }
    return group;
  }
}
