import { createHash } from 'node:crypto';
import { listWords, shellWords } from '../../platform/index.ts';

/** So many rows of a table are named at a time. */
const MOST_ROWS = 5;
const MOST_NAMES = 3;
const MOST_REMEMBERED = 50_000;
const NOT_WRITTEN = 'nothing is written to it; the results are kept in the queue';

/** Says to people what is wrong with tables: everything once, and not too much. */
export class Problems {
  private readonly tell: (message: string) => void;
  private readonly consequence: string;
  private readonly told = new Set<string>();

  /** @param consequence what a table that can't be used means: ends the sentences about it */
  constructor(tell: (message: string) => void, consequence = NOT_WRITTEN) {
    this.tell = tell;
    this.consequence = consequence;
  }

  /** A table can't be read or written. */
  unusable(key: string, message: string): void {
    this.once(key, `${message}. Until that is mended, or the file moved away, ${this.consequence}.`);
  }

  /** @param key what it is about: the message may differ each time */
  once(key: string, message: string): void {
    if (this.told.has(key)) return;
    if (this.told.size >= MOST_REMEMBERED) this.told.clear();
    this.told.add(key);
    this.tell(message);
  }

  /** The problem is over: when it comes again, it is news. */
  over(key: string): void {
    this.told.delete(key);
  }

  /** Rows that a table had lost are there again. */
  restored(table: string, names: readonly string[]): void {
    const named = names.slice(0, MOST_NAMES);
    const more = names.length > MOST_NAMES ? [`${names.length - MOST_NAMES} more`] : [];
    const [rows, was, them] = names.length === 1 ? ['row', 'was', 'it'] : ['rows', 'were', 'one of them'];
    this.tell(
      `${table}: the ${rows} of ${listWords([...named, ...more])}, completed before, ${was} missing and ` +
        `${was} written again from the queue. To run ${them} again instead: gpu-owner exp retry ${shellWords(named.slice(0, 1))}`,
    );
  }

  /** What is wrong with rows of a table, while it is read once. */
  ofRows(table: string): RowProblems {
    return new RowProblems(this, table);
  }
}

export class RowProblems {
  private readonly problems: Problems;
  private readonly table: string;
  count = 0;

  constructor(problems: Problems, table: string) {
    this.problems = problems;
    this.table = table;
  }

  /** @param why is only asked for the rows that are named */
  add(line: number, cells: readonly string[], why: () => string): void {
    if (this.count++ >= MOST_ROWS) return;
    const content = createHash('sha256').update(JSON.stringify(cells)).digest('base64');
    this.problems.once(`${this.table}\n${content}`, `${this.table}:${line}: ${why()}`);
  }

  /** @returns in short, for lists of problems; null: nothing */
  end(): string | null {
    const { count, table } = this;
    if (count === 0) return null;
    const text = `${table}: ${count} ${count === 1 ? 'row is' : 'rows are'} no task's result`;
    if (count > MOST_ROWS)
      this.problems.once(`${table}\n${count} rows`, `${text}; the first are named above.`);
    return text;
  }
}
