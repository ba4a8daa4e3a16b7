import {
  type BigIntStats,
  closeSync,
  constants,
  existsSync,
  fstatSync,
  ftruncateSync,
  linkSync,
  lstatSync,
  openSync,
  renameSync,
  statSync,
  writeSync,
} from 'node:fs';
import { type FileHandle, lstat, open, rm, stat } from 'node:fs/promises';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { errorCode, ifFailed } from '../../errors.ts';
import { isInside, makeDirectory, realPath } from '../project/index.ts';

/** A table's path, and the project that it belongs to. */
export interface TableFile {
  path: string;
  project: string;
}

/** Thrown when another process has changed the file meanwhile: it has to be read again. */
export class FileChangedError extends Error {}

/** Thrown when another process doesn't stop changing the file. */
export class FileBusyError extends Error {}

/** Thrown for a file that can't be used. The message is for people, and names the remedy. */
export class FileRefusedError extends Error {}

/** Equal as long as the file is unchanged. */
export type Fingerprint = string;

function fingerprintOf(stats: BigIntStats): Fingerprint {
  return [stats.dev, stats.ino, stats.size, stats.mtimeNs, stats.ctimeNs].join(':');
}

/** null: nothing is there. */
export async function readFingerprint({ path }: TableFile): Promise<Fingerprint | null> {
  try {
    return fingerprintOf(await stat(path, { bigint: true }));
  } catch (error) {
    if (errorCode(error) !== 'ENOENT') throw error;
    if (await lstat(path).catch(ifFailed(null)))
      throw new FileRefusedError('it is a symbolic link that leads nowhere: remove it');
    return null;
  }
}

const QUIET_MS = 50;
const MAX_LOOKS = 20;
const LONG_AGO_MS = 2_000;

/**
 * Editors empty a file before they write it again: a file that changed just now is left alone until it stays as it is.
 * @throws FileBusyError if that takes longer than a second
 */
export async function waitUntilUnchanged(file: TableFile): Promise<void> {
  for (let looks = 0; looks < MAX_LOOKS; looks++) {
    const stats = await stat(file.path, { bigint: true });
    if (Math.abs(Date.now() - Number(stats.mtimeMs)) > LONG_AGO_MS) return;
    await sleep(QUIET_MS);
    if ((await readFingerprint(file)) === fingerprintOf(stats)) return;
  }
  throw new FileBusyError();
}

/** Strings can't be longer. */
const MAX_BYTES = 500 * 1024 * 1024;

/** @throws FileRefusedError for what is no file, FileChangedError, errors of the system */
export async function readTable({ path }: TableFile): Promise<{ bytes: Buffer; fingerprint: Fingerprint }> {
  // Without O_NONBLOCK, opening a FIFO waits for a writer.
  const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  try {
    const stats = await file.stat({ bigint: true });
    if (!stats.isFile()) {
      const what = stats.isDirectory() ? 'a directory' : 'not a regular file';
      throw new FileRefusedError(`it is ${what}: move it away`);
    }
    if (stats.size > MAX_BYTES)
      throw new FileRefusedError('it is larger than 500 MiB: move a part of its rows to another file');
    const bytes = await file.readFile();
    const fingerprint = fingerprintOf(stats);
    if (fingerprintOf(await file.stat({ bigint: true })) !== fingerprint) throw new FileChangedError();
    return { bytes, fingerprint };
  } finally {
    await file.close();
  }
}

/**
 * Appends all of it or nothing. From the look at the file to the write there is no pause, so that there is next to no time for
 * others to change it.
 * @returns the new fingerprint, and what went wrong (null: nothing), such as ENOSPC: then nothing was appended
 * @throws FileChangedError if the file isn't the one of the fingerprint any longer; errors of the system
 */
export function append(
  { path }: TableFile,
  fingerprint: Fingerprint,
  bytes: Buffer,
): { fingerprint: Fingerprint; error: unknown } {
  const file = openSync(path, constants.O_WRONLY | constants.O_APPEND | constants.O_NONBLOCK);
  try {
    const before = fstatSync(file, { bigint: true });
    if (fingerprintOf(before) !== fingerprint) throw new FileChangedError();
    const size = Number(before.size);
    let written = 0;
    try {
      while (written < bytes.length) written += writeSync(file, bytes, written);
    } catch (error) {
      // If others wrote meanwhile, the end isn't ours to cut off: the next reader mends it.
      if (fstatSync(file).size !== size + written) throw new FileChangedError();
      if (written > 0) ftruncateSync(file, size);
      return { fingerprint: fingerprintOf(fstatSync(file, { bigint: true })), error };
    }
    const after = fstatSync(file, { bigint: true });
    const there = statSync(path, { bigint: true, throwIfNoEntry: false });
    const isWhole = Number(after.size) === size + bytes.length;
    if (!isWhole || there === undefined || fingerprintOf(there) !== fingerprintOf(after))
      throw new FileChangedError();
    return { fingerprint: fingerprintOf(after), error: null };
  } finally {
    closeSync(file);
  }
}

/**
 * Puts a new file in the place of the old one, at once; mode and owner stay.
 * @param fingerprint of what is to be replaced; null: nothing is there
 * @throws FileChangedError if something else is there now
 */
export async function replace(
  table: TableFile,
  fingerprint: Fingerprint | null,
  write: (file: FileHandle) => Promise<void>,
): Promise<Fingerprint> {
  if (fingerprint === null) makeDirectory(dirname(table.path), table.project);
  // A link stays one: its target is replaced.
  const path = realPath(table.path);
  const temporary = temporaryOf(path);
  await rm(temporary, { force: true });
  const file = await open(temporary, 'wx', 0o666);
  let own: BigIntStats;
  try {
    try {
      if (fingerprint !== null) await copyOwner(path, file);
      await write(file);
      await file.sync();
      own = await file.stat({ bigint: true });
    } finally {
      await file.close();
    }
    if (fingerprint === null) linkWithoutReplacing(temporary, path);
    else {
      const there = lstatSync(path, { bigint: true, throwIfNoEntry: false });
      if (there === undefined || fingerprintOf(there) !== fingerprint) throw new FileChangedError();
      renameSync(temporary, path);
    }
  } finally {
    await rm(temporary, { force: true });
  }
  const now = lstatSync(path, { bigint: true, throwIfNoEntry: false });
  // Another process may have appended a row already.
  if (now?.ino !== own.ino || now.size !== own.size || now.mtimeNs !== own.mtimeNs)
    throw new FileChangedError();
  await sync(dirname(path));
  return fingerprintOf(now);
}

/** Removes what a process that was killed has left of a rewrite. Never fails. */
export async function removeLeftover({ path }: TableFile): Promise<void> {
  await rm(temporaryOf(realPath(path)), { force: true }).catch(ifFailed(undefined));
}

/** Waits until a file or directory is on the disk. */
export async function sync(path: string): Promise<void> {
  const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    await file.sync();
  } catch (error) {
    // Some file systems can't, for directories.
    if (errorCode(error) !== 'EINVAL') throw error;
  } finally {
    await file.close();
  }
}

function temporaryOf(path: string): string {
  return join(dirname(path), `.${basename(path)}.gpu-owner`);
}

/** Unlike a rename, a link never replaces a file that has come meanwhile. */
function linkWithoutReplacing(temporary: string, path: string): void {
  try {
    linkSync(temporary, path);
  } catch (error) {
    if (errorCode(error) === 'EEXIST') throw new FileChangedError();
    // File systems without hard links.
    if (lstatSync(path, { throwIfNoEntry: false }) !== undefined) throw new FileChangedError();
    renameSync(temporary, path);
  }
}

async function copyOwner(from: string, to: FileHandle): Promise<void> {
  const old = await stat(from);
  const own = await to.stat();
  // Only root can give files away; a group can be kept by its members.
  if (old.uid !== own.uid || old.gid !== own.gid) {
    const isGiven = await to.chown(old.uid, old.gid).then(() => true, ifFailed(false));
    if (!isGiven) await to.chown(own.uid, old.gid).catch(ifFailed(undefined));
  }
  await to.chmod(old.mode & 0o777);
}

const TABLE_NAME = 'final_results.csv';

/** Where the table of an output directory is. Two names of one directory have one table. @param project absolute */
export function tablePath(project: string, outputDirectory: string): string {
  return join(realPath(resolve(project, outputDirectory)), TABLE_NAME);
}

/**
 * The table in the directory of the project itself, where a later version of the original system has the rows of all output
 * directories. That table is read, and never written. null: there is none
 */
export function commonTablePath(project: string): string | null {
  const path = tablePath(project, '.');
  return existsSync(path) ? path : null;
}

/** For people: from the project on, if it is in there. */
export function shownPath(project: string, path: string): string {
  const directory = realPath(project);
  return isInside(path, directory) ? relative(directory, path) : path;
}
