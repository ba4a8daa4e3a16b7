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

  /** Collects the rows of a table that count for no task, while it is read once. */
  ofRows(table: string): RowProblems {
    let first: { key: string; text: string } | null = null;
    let count = 0;
    return {
      add: (line, cells, why) => {
        first ??= { key: JSON.stringify([table, cells]), text: `${table}:${line}: ${why()}.` };
        count++;
      },
      end: () => {
        if (first === null) return;
        const all =
          count === 1 ? '' : ` ${count} rows of this table count for no task, of which this is the first.`;
        this.once(first.key, first.text + all);
      },
    };
  }
}

export interface RowProblems {
  /** @param why is only asked for the row that is named */
  add(line: number, cells: readonly string[], why: () => string): void;
  /** Tells of the first one, and how many there are. */
  end(): void;
}
