import { now } from '../../platform/index.ts';
import { codeOf, sync } from './file.ts';
import type { Table } from './table.ts';

/** Tables with rows that may not be on the disk yet. */
export class Disk {
  /** Since when. */
  private readonly tables = new Map<Table, number>();

  add(table: Table): void {
    if (!this.tables.has(table)) this.tables.set(table, now());
  }

  /** @param age how long they must have been written at least, in ms: many appends are one wait for the disk */
  async sync(age: number, onError: (table: Table, error: unknown) => void): Promise<void> {
    for (const [table, since] of this.tables) {
      if (now() - since < age) continue;
      this.tables.delete(table);
      try {
        await sync(table.file);
      } catch (error) {
        // Gone meanwhile, or lost on its way to the disk: the next look at the file tells which rows it has.
        table.forget();
        if (codeOf(error) !== 'ENOENT') onError(table, error);
      }
    }
  }
}
