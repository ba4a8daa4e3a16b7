import { GPUOwnerError } from '../../../errors.ts';
import { sanitize } from '../../../text.ts';
import { QueueGone } from '../gone.ts';

/** Result codes of SQLite (https://sqlite.org/rescode.html). */
const BUSY = 5;
const LOCKED = 6;

/** Cause and remedy of what a queue can't be used for any longer. */
const PROBLEMS: Record<number, readonly [problem: string, remedy: string]> = {
  3: ["can't be used: permission denied", 'Ask its owner, or name another: --queue sqlite:PATH.'],
  7: ["can't be used: memory is used up", 'Free some.'],
  8: [
    "can't be written to: it is read-only for you, or on a read-only file system",
    'Ask its owner for permission, or name another: --queue sqlite:PATH.',
  ],
  10: [
    "can't be read or written: its disk fails, or is full",
    'Make room, or look at the disk (dmesg). What was acknowledged is kept; run again to go on.',
  ],
  11: [
    'is damaged',
    'Restore it from a backup, or move it away and run again: the results that are in the tables are found there.',
  ],
  13: [
    "can't be written to: its disk (or the quota) is full",
    'Make room and run again; what was acknowledged is kept.',
  ],
  14: [
    "can't be opened: no permission, no space, or its directory is gone",
    'Look at its directory, or name another: --queue sqlite:PATH.',
  ],
  26: [
    'is not a queue: the file is of another kind, or damaged',
    'Move it away, or name another: --queue sqlite:PATH.',
  ],
};

interface SQLiteError extends Error {
  errcode: number;
}

function isSQLiteError(error: unknown): error is SQLiteError {
  return error instanceof Error && typeof (error as Partial<SQLiteError>).errcode === 'number';
}

/** Whether somebody else is in the way, for a moment. */
export function isBusy(error: unknown): boolean {
  return isSQLiteError(error) && [BUSY, LOCKED].includes(error.errcode & 0xff);
}

export function unusable(path: string, problem: string, remedy: string, cause?: unknown): GPUOwnerError {
  return new GPUOwnerError('ERR_QUEUE', sanitize(`the queue ${path} ${problem}. ${remedy}`, 1_000), {
    cause,
  });
}

/** For those who may only read it. */
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
    "can't be read by you at the moment: you may not write to it, and nobody works on it who could",
    'Ask its owner to look, or for write permission; while somebody works on it, it can be read.',
    cause,
  );
}

export function gone(path: string): QueueGone {
  const problem = 'was removed or replaced while it was in use';
  const remedy =
    'What was done since is not in it. Start again; results that are in the tables are found there.';
  return new QueueGone(sanitize(`the queue ${path} ${problem}. ${remedy}`, 1_000));
}

/** The error of SQLite for people, with the remedy; others as they are. */
export function explain(error: unknown, path: string): unknown {
  if (!isSQLiteError(error)) return error;
  const known = PROBLEMS[error.errcode & 0xff];
  if (known === undefined) {
    return new GPUOwnerError(
      'ERR_INTERNAL',
      sanitize(`the queue ${path}: ${error.message} (SQLite ${error.errcode})`, 1_000),
      { cause: error },
    );
  }
  return unusable(path, `${known[0]} (SQLite ${error.errcode})`, known[1], error);
}
