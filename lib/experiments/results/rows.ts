import { sanitize } from '../../platform/index.ts';
import { isTooWide } from './contents.ts';
import type { Row } from './csv.ts';
import type { Match, RowMatcher } from './matching.ts';
import { NAME_COLUMN, type TaskIndex } from './task-index.ts';

/** What a row of a table is, as far as tasks go. */
export interface Reading {
  /** The task that has this row; no other is written for it. null: none. */
  owner: number | null;
  /** Whether it is that task's result beyond doubt. */
  certain: boolean;
  /** It fits these tasks, and nothing in it decides between them. Rows with equal `parameters` fit the same. */
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
    // The last cell of a row that is too short may itself be cut.
    const last = header.findLastIndex((name) => name === NAME_COLUMN || index.columns.has(name));
    this.shortest = Math.min(header.length, last + 2);
    this.nameOf = nameOf;
  }

  read(row: Row): Reading {
    const { cells } = row;
    if (cells.length < this.shortest) {
      return nobodys(() => `this row has ${cells.length} of ${this.columns} cells; complete or remove it.`);
    }
    if (isTooWide(row, this.columns)) {
      return nobodys(
        () =>
          `this row has ${cells.length} cells, but there are ${this.columns} columns: values with commas need quotes.`,
      );
    }
    return this.readingOf(this.matcher.match(cells), cells);
  }

  private readingOf(match: Match, cells: readonly string[]): Reading {
    if (match.kind === 'one') return { owner: match.task, certain: true, shared: null, why: () => '' };
    if (match.kind === 'none') {
      return nobodys(() => `this row is no task's result: ${this.matcher.whyNone(cells)}. It is kept.`);
    }
    const { tasks, named } = match;
    const why = () => {
      const names = tasks.slice(0, NAMED_AT_MOST).map((task) => this.nameOf(task));
      const more = tasks.length > NAMED_AT_MOST ? ` and ${tasks.length - NAMED_AT_MOST} more` : '';
      const apart = this.matcher.differences(tasks).map((name) => sanitize(name, 60));
      const missing = apart.length > 0 ? `: ${apart.join(', ')}` : '';
      return `this row fits several tasks (${names.join(', ')}${more}): it counts for none. Fill in what tells them apart${missing}.`;
    };
    return { owner: named, certain: false, shared: named === null ? match : null, why };
  }
}

function nobodys(why: () => string): Reading {
  return { owner: null, certain: false, shared: null, why };
}
