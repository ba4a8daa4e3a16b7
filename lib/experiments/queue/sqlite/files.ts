import { accessSync, closeSync, constants, openSync, realpathSync, type Stats, statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { networkFileSystem, systemError, userName } from '../../../platform/index.ts';
import { giveTo, isShared, narrow } from '../../project/index.ts';
import { unusable } from './errors.ts';

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
    'Name a file on a local disk: --queue sqlite:PATH.',
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
      if (isShared(around)) giveTo(file, around.gid);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') {
        // Another process was quicker; or it is a link that leads nowhere.
        if (statSync(path, { throwIfNoEntry: false }) !== undefined) continue;
        throw unusable(path, 'is a symbolic link that leads nowhere', 'Remove it.', error);
      }
      throw cannotOpen(path, error);
    }
  }
}

/** Why this user may not write to a database: because of its file system or its permissions. null: they may, or the reason is another. */
export function whyReadOnly(path: string): 'file system' | 'permission' | null {
  try {
    accessSync(path, constants.W_OK);
    return null;
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException;
    if (code === 'EROFS') return 'file system';
    return ['EACCES', 'EPERM'].includes(code) ? 'permission' : null;
  }
}

/** Whether no process has the database open: its log exists while one has, and longer only if one was killed. */
export function isUnused(path: string): boolean {
  return statSync(`${path}-wal`, { throwIfNoEntry: false }) === undefined;
}

/** Lets only users who may write read a queue's files: a reader could lock them, and so stall the queue. */
export function narrowFiles(path: string): void {
  const forGroup = isShared(statSync(path));
  for (const file of [path, `${path}-wal`, `${path}-shm`, `${path}-lock`]) narrow(file, forGroup);
}

/**
 * Opens a file beside the database for its users, and makes it if need be. `readOnly`: opens an existing one for reading.
 * @throws ERR_QUEUE
 */
export function openBeside(database: string, path: string, readOnly = false): number {
  const flags = constants.O_NOFOLLOW | (readOnly ? constants.O_RDONLY : constants.O_RDWR);
  try {
    for (;;) {
      try {
        return openSync(path, flags);
      } catch (error) {
        if (readOnly || (error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
      }
      try {
        const { gid, ...stat } = statSync(database);
        const file = openSync(path, flags | constants.O_CREAT | constants.O_EXCL, 0o600);
        if (isShared(stat)) giveTo(path, gid);
        return file;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      }
    }
  } catch (error) {
    throw cannotOpen(path, error);
  }
}

/** The inode numbers of files; '' for a file that doesn't exist. */
export function inodes(paths: readonly string[]): string {
  return paths.map((path) => statSync(path, { throwIfNoEntry: false })?.ino ?? '').join(' ');
}

function cannotOpen(path: string, error: unknown): unknown {
  const { errno, code, message } = error as NodeJS.ErrnoException;
  if (errno === undefined) return error;
  const what = systemError(-errno) || message;
  const there = statSync(dirname(path), { throwIfNoEntry: false });
  const whose =
    code === 'EACCES' && there !== undefined ? `, it is in a directory of ${userName(there.uid)}` : '';
  const remedy =
    code === 'EACCES'
      ? 'Only users who may write to a queue may read it: its owner, or the group that shares the project.'
      : code === 'EMFILE'
        ? 'Allow more open files.'
        : code === 'ENOSPC' || code === 'EDQUOT'
          ? 'Make room and run again.'
          : 'Look at its directory, or name another: --queue sqlite:PATH.';
  return unusable(path, `can't be opened: ${what}${whose}`, remedy, error);
}
