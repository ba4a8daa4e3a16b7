import { GPUOwnerError } from '../../../errors.ts';
import { sanitize } from '../../../platform/index.ts';
import { QueueRemovedError } from '../queue.ts';

/** Result codes of SQLite (https://sqlite.org/rescode.html). */
const BUSY = 5;
const LOCKED = 6;

export const DAMAGED =
  'Restore it from a backup, or move it away and run again: the results that are in the tables are found there.';

/** Problems and remedies by SQLite's result code. */
const PROBLEMS: Record<number, readonly [problem: string, remedy: string]> = {
  3: ["can't be used: permission denied", 'Ask its owner, or name another: --queue sqlite:PATH.'],
  7: ["can't be used: the process is out of memory", 'Free some memory.'],
  8: [
    "can't be written to: it is read-only for you, or on a read-only file system",
    'Ask its owner for permission, or name another: --queue sqlite:PATH.',
  ],
  10: [
    "can't be read or written: its disk fails or is full",
    'Make room, or look at the disk (dmesg). Acknowledged changes are kept; run again to continue.',
  ],
  11: ['is damaged', DAMAGED],
  13: [
    "can't be written to: its disk (or the quota) is full",
    'Make room and run again; acknowledged changes are kept.',
  ],
  14: [
    "can't be opened: no permission, no space, or its directory is gone",
    'Look at its directory, or name another: --queue sqlite:PATH.',
  ],
  26: [
    'is not a queue: it is another kind of file, or damaged',
    'Move it away, or name another: --queue sqlite:PATH.',
  ],
};

/** SQLite's messages: errors of queries for many rows come without a code. */
const MESSAGES: Readonly<Record<string, number>> = {
  'database is locked': BUSY,
  'database table is locked': LOCKED,
  'out of memory': 7,
  'attempt to write a readonly database': 8,
  'disk I/O error': 10,
  'database disk image is malformed': 11,
  'database or disk is full': 13,
  'unable to open database file': 14,
  'file is not a database': 26,
};
const UNKNOWN = 1;

/** The result code; null: the error is not SQLite's. */
function codeOf(error: unknown): number | null {
  const { errcode, code, message = '' } = error as Error & { errcode?: unknown; code?: unknown };
  if (typeof errcode === 'number') return errcode;
  return code === 'ERR_SQLITE_ERROR' ? (MESSAGES[message] ?? UNKNOWN) : null;
}

/** Whether another process uses the database at the moment. */
export function isBusy(error: unknown): boolean {
  return [BUSY, LOCKED].includes((codeOf(error) ?? 0) & 0xff);
}

export function unusable(path: string, problem: string, remedy: string, cause?: unknown): GPUOwnerError {
  return new GPUOwnerError('ERR_QUEUE', sanitize(`the queue ${path} ${problem}. ${remedy}`, 1_000), {
    cause,
  });
}

/** The error for a user who may only read the database. */
export function notReadable(
  path: string,
  obstacle: 'file system' | 'permission',
  cause: unknown,
): GPUOwnerError {
  if (obstacle === 'file system') {
    return unusable(
      path,
      "can't be read where it is: its file system is read-only, and SQLite needs two files beside it",
      'Copy it elsewhere, and name the copy: --queue sqlite:PATH.',
      cause,
    );
  }
  return unusable(
    path,
    "can't be read by you now: you may not write to it, and no process that may has it open",
    'Ask its owner for write permission. While a process of its owner works on it, you can read it.',
    cause,
  );
}

export function removed(path: string): QueueRemovedError {
  const problem = 'was removed or replaced while it was in use';
  const remedy = 'Later changes are not in it. Start again; results in the tables are found there.';
  return new QueueRemovedError(sanitize(`the queue ${path} ${problem}. ${remedy}`, 1_000));
}

/** Turns an error of SQLite into one for people, with the remedy. Returns other errors as they are. */
export function explain(error: unknown, path: string): unknown {
  // An integer above 2^53: no queue of ours has one.
  if ((error as NodeJS.ErrnoException).code === 'ERR_OUT_OF_RANGE') {
    return unusable(path, 'is damaged', DAMAGED, error);
  }
  const code = codeOf(error);
  if (code === null) return error;
  const known = PROBLEMS[code & 0xff];
  // Tables, columns or constraints that aren't as they were made.
  if (known === undefined) {
    const why = sanitize((error as Error).message, 200);
    const problem = `is damaged, or was changed by another program: ${why} (SQLite ${code})`;
    return unusable(path, problem, DAMAGED, error);
  }
  return unusable(path, `${known[0]} (SQLite ${code})`, known[1], error);
}
