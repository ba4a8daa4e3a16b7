import { createHash } from 'node:crypto';
import { errorCode } from '../../errors.ts';
import { listWords, shellWords } from '../../platform/index.ts';

/** Errors of the system that people meet, in words. */
export function explain(error: unknown): string {
  switch (errorCode(error)) {
    case 'ENOSPC':
      return 'the disk is full: make room';
    case 'EDQUOT':
      return 'your quota is used up: make room';
    case 'EROFS':
      return 'its file system is read-only: mount it for writing';
    case 'EACCES':
    case 'EPERM':
      return 'permission denied: chmod or chown it';
    case 'ENOTDIR':
    case 'EEXIST':
      return 'there is a file in place of its directory: move that file away';
    default:
      return error instanceof Error ? error.message : String(error);
  }
}

/** So many rows of a table are named at a time. */
const MAX_ROWS = 5;
const MAX_NAMES = 3;
const MAX_REMEMBERED = 50_000;
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
    this.once(key, `${message}. Until you correct the file or move it away, ${this.consequence}.`);
  }

  /** @param key what it is about: the message may differ each time */
  once(key: string, message: string): void {
    if (this.told.has(key)) return;
    if (this.told.size >= MAX_REMEMBERED) this.told.clear();
    this.told.add(key);
    this.tell(message);
  }

  /** The problem is over: when it comes again, it is news. */
  markResolved(key: string): void {
    this.told.delete(key);
  }

  /** Rows that a table had lost are there again. */
  restored(table: string, names: readonly string[]): void {
    const named = names.slice(0, MAX_NAMES);
    const more = names.length > MAX_NAMES ? [`${names.length - MAX_NAMES} more`] : [];
    const [rows, was, them] = names.length === 1 ? ['row', 'was', 'it'] : ['rows', 'were', 'one of them'];
    this.tell(
      `${table}: the ${rows} of ${listWords([...named, ...more])}, completed earlier, ${was} missing and ` +
        `${was} restored from the queue. To run ${them} again instead: gpu-owner exp retry ${shellWords(named.slice(0, 1))}`,
    );
  }

  /** Collects what is wrong with rows of a table, while it is read once. */
  ofRows(table: string): RowProblems {
    let count = 0;
    return {
      add: (line, cells, why) => {
        if (count++ >= MAX_ROWS) return;
        const content = createHash('sha256').update(JSON.stringify(cells)).digest('base64');
        this.once(`${table}\n${content}`, `${table}:${line}: ${why()}`);
      },
      end: () => {
        if (count === 0) return null;
        const text = `${table}: ${count} ${count === 1 ? 'row is' : 'rows are'} not the result of a task`;
        if (count > MAX_ROWS) this.once(`${table}\n${count} rows`, `${text}; the first are named above.`);
        return text;
      },
    };
  }
}

export interface RowProblems {
  /** @param why is only asked for the rows that are named */
  add(line: number, cells: readonly string[], why: () => string): void;
  /** @returns in short, for lists of problems; null: nothing */
  end(): string | null;
}
