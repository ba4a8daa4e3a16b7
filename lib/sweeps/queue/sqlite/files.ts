import { closeSync, constants, openSync, realpathSync, type Stats, statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { asError, errorCode, errorMessage } from '../../../errors.ts';
import { networkFileSystem, sanitize, systemError, userName } from '../../../platform/index.ts';
import { isShared, restrictMode, setSharedOwner } from '../../project/index.ts';
import { QueueRemovedError, unusable } from '../queue.ts';

/**
 * Finds the one path of a database, whatever links lead there: the files beside it are named after it. null: there is none.
 * The database isn't opened here: closing it would end the locks that SQLite has on it elsewhere in the process.
 * @throws ERR_QUEUE for what can't be a database
 */
export function findFile(path: string): string | null {
  let stat: Stats | undefined;
  try {
    stat = statSync(path, { throwIfNoEntry: false });
  } catch (error) {
    throw cannotOpen(path, error);
  }
  if (stat === undefined) return null;
  const real = realpathSync(path);
  if (!stat.isFile()) {
    throw unusable(path, 'is not a regular file', 'Remove it, or name another: --queue sqlite:PATH.');
  }
  if (stat.nlink > 1) {
    throw unusable(
      path,
      `has ${stat.nlink} hard links, and SQLite would damage it under two names`,
      'Remove the other links, or make a copy while no process uses it.',
    );
  }
  checkDisk(real, path);
  return real;
}

function checkDisk(there: string, path: string): void {
  const network = networkFileSystem(there);
  if (network === undefined) return;
  throw unusable(
    path,
    `is on a network file system (${network}), whose locks aren't reliable`,
    'Name a file on a local disk: --queue sqlite:PATH. Several hosts can share a queue on Redis: --queue redis://HOST.',
  );
}

/** Finds a database as {@link findFile} does, or makes its file. */
export function makeFile(path: string): string {
  for (;;) {
    const found = findFile(path);
    if (found !== null) return found;
    try {
      const directory = realpathSync(dirname(path));
      checkDisk(directory, path);
      // By ourselves: SQLite gives the files beside it the same mode.
      const file = join(directory, basename(path));
      closeSync(openSync(file, 'wx', 0o600));
      const around = statSync(directory);
      if (isShared(around)) setSharedOwner(file, around.gid);
    } catch (error) {
      if (errorCode(error) === 'EEXIST') {
        // Another process was quicker; or it is a link that leads nowhere.
        if (statSync(path, { throwIfNoEntry: false }) !== undefined) continue;
        throw unusable(path, 'is a symbolic link that leads nowhere', 'Remove it.', error);
      }
      throw cannotOpen(path, error);
    }
  }
}

/** Lets only users who may write read a queue's files: a reader could lock them, and so stall the queue. */
export function narrowFiles(path: string): void {
  const forGroup = isShared(statSync(path));
  for (const file of [path, `${path}-wal`, `${path}-shm`, `${path}-lock`]) restrictMode(file, forGroup);
}

/** Opens a file beside the database for its users, and makes it if need be. @throws ERR_QUEUE */
export function openBeside(database: string, path: string): number {
  const flags = constants.O_NOFOLLOW | constants.O_RDWR;
  try {
    for (;;) {
      try {
        return openSync(path, flags);
      } catch (error) {
        if (errorCode(error) !== 'ENOENT') throw error;
      }
      try {
        const { gid, ...stat } = statSync(database);
        const file = openSync(path, flags | constants.O_CREAT | constants.O_EXCL, 0o600);
        if (isShared(stat)) setSharedOwner(path, gid);
        return file;
      } catch (error) {
        if (errorCode(error) !== 'EEXIST') throw error;
      }
    }
  } catch (error) {
    throw cannotOpen(path, error);
  }
}

function cannotOpen(path: string, error: unknown): unknown {
  const { errno, code, message } = asError(error);
  if (errno === undefined) return error;
  const what = systemError(-errno) || message;
  const there = statSync(dirname(path), { throwIfNoEntry: false });
  const whose =
    code === 'EACCES' && there !== undefined ? `, it is in a directory of ${userName(there.uid)}` : '';
  const remedy =
    code === 'EACCES'
      ? 'Only users who may write to a queue may read it: its owner, or the group that shares the project.'
      : 'Look at its directory, or name another: --queue sqlite:PATH.';
  return unusable(path, `can't be opened: ${what}${whose}`, remedy, error);
}

const DAMAGED =
  'Restore it from a backup, or move it away and run again: the results that are in the tables are found there.';

/** SQLite's messages about the disk of a database, and who may use it. The others are about its content. */
const OUTSIDE = /permission|memory|readonly|disk|unable to open/;

/** The message of an error of SQLite; null: it is another one. */
function messageOf(error: unknown): string | null {
  return errorCode(error) === 'ERR_SQLITE_ERROR' ? errorMessage(error) : null;
}

/** Whether another process uses the database at the moment. */
export function isBusy(error: unknown): boolean {
  return /database (?:table )?is locked/.test(messageOf(error) ?? '');
}

export function removed(path: string): QueueRemovedError {
  const problem = 'was removed or replaced while it was in use';
  const remedy = 'Later changes are not in it. Start again; results in the tables are found there.';
  return new QueueRemovedError(`the queue ${path} ${problem}. ${remedy}`);
}

/** Turns an error of SQLite into one for people, with the remedy. Returns other errors as they are. */
export function explain(error: unknown, path: string): unknown {
  // An integer above 2^53: no queue of ours has one.
  if (errorCode(error) === 'ERR_OUT_OF_RANGE') {
    return unusable(path, 'is damaged', DAMAGED, error);
  }
  const message = messageOf(error);
  if (message === null) return error;
  const text = sanitize(message, 200);
  if (!OUTSIDE.test(message) || message.includes('malformed'))
    return unusable(path, `is damaged, or another program's: ${text}`, DAMAGED, error);
  const remedy = 'Make room, or look at its permissions and its disk. Acknowledged changes are kept.';
  return unusable(path, `can't be used: ${text}`, remedy, error);
}
