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
  writeSync,
} from 'node:fs';
import { type FileHandle, lstat, open, rm } from 'node:fs/promises';
import { basename, join, relative, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { now } from '../../platform/index.ts';
import { locate, type ResolvedPath, readable, realPath } from '../project/index.ts';

/** Which file, and the project that it belongs to: whoever owns that may lay links. */
export interface TableFile {
  path: string;
  project: string;
}

/** Thrown when somebody else has changed the file meanwhile: it has to be read again. */
export class FileChangedError extends Error {}

/** Thrown when somebody doesn't stop changing the file. */
export class FileBusyError extends Error {}

/** Thrown for a file that can't be used. The message is for people, and names the remedy. */
export class FileRefusedError extends Error {}

/** Equal as long as nobody has touched the file. */
export type Fingerprint = string;

function fingerprintOf(stats: BigIntStats): Fingerprint {
  return [stats.dev, stats.ino, stats.size, stats.mtimeNs, stats.ctimeNs].join(':');
}

export function codeOf(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error ? String(error.code) : undefined;
}

/** Does something with the resolved path of the file. @throws UnsafePathError; ENOENT if there is no such directory */
async function withResolvedPath<T>(
  { path, project }: TableFile,
  act: (resolved: ResolvedPath) => Promise<T> | T,
  create = false,
): Promise<T> {
  const resolved = locate(path, project, { create, follow: true });
  try {
    return await act(resolved);
  } catch (error) {
    throw readable(error, path);
  } finally {
    resolved.close();
  }
}

/** null: nothing is there. @throws UnsafePathError */
export async function look(file: TableFile): Promise<Fingerprint | null> {
  try {
    return await withResolvedPath(file, async (resolved) =>
      fingerprintOf(await lstat(resolved.at, { bigint: true })),
    );
  } catch (error) {
    if (codeOf(error) !== 'ENOENT') throw error;
    if (await lstat(file.path).catch(() => null))
      throw new FileRefusedError('it is a symbolic link that leads nowhere: remove it');
    return null;
  }
}

const QUIET = 50;
const MAX_LOOKS = 20;
const LONG_AGO = 2_000;

/**
 * Editors empty a file before they write it again: what changed just now is left alone until nobody changes it any more.
 * @throws FileBusyError if that takes longer than a second
 */
export async function settle(file: TableFile): Promise<void> {
  for (let looks = 0; looks < MAX_LOOKS; looks++) {
    const stats = await withResolvedPath(file, ({ at }) => lstat(at, { bigint: true }));
    if (Math.abs(Date.now() - Number(stats.mtimeMs)) > LONG_AGO) return;
    await sleep(QUIET);
    if ((await look(file)) === fingerprintOf(stats)) return;
  }
  throw new FileBusyError();
}

const READ = constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY | constants.O_NOFOLLOW;

/** @throws FileRefusedError for what is no file, UnsafePathError */
export function openToRead(table: TableFile): Promise<{ file: FileHandle; fingerprint: Fingerprint }> {
  return withResolvedPath(table, async (resolved) => {
    // Without O_NONBLOCK, opening a FIFO waits for somebody who writes to it.
    const file = await open(resolved.at, READ);
    try {
      const stats = await file.stat({ bigint: true });
      if (!stats.isFile()) {
        throw new FileRefusedError(
          `it is ${stats.isDirectory() ? 'a directory' : 'not a regular file'}: move it away`,
        );
      }
      resolved.check(await file.stat());
      return { file, fingerprint: fingerprintOf(stats) };
    } catch (error) {
      await file.close();
      throw error;
    }
  });
}

/** As long as the file is open, its own fingerprint. */
export async function fingerprintOfOpen(file: FileHandle): Promise<Fingerprint> {
  return fingerprintOf(await file.stat({ bigint: true }));
}

const APPEND =
  constants.O_WRONLY | constants.O_APPEND | constants.O_NONBLOCK | constants.O_NOCTTY | constants.O_NOFOLLOW;

/**
 * Appends all of it or nothing. From the look at the file to the write there is no pause, so that there is next to no time for
 * others to change it.
 * @param end where the text is to end before; null: where the file does
 * @returns the new fingerprint, and what went wrong (null: nothing), such as ENOSPC: then nothing was appended
 * @throws FileChangedError if the file isn't the one of the fingerprint any longer; errors of the system
 */
export function append(
  { path, project }: TableFile,
  fingerprint: Fingerprint,
  bytes: Buffer,
  end: number | null,
): { fingerprint: Fingerprint; error: unknown } {
  const resolved = locate(path, project, { follow: true });
  let file: number | null = null;
  try {
    file = openSync(resolved.at, APPEND);
    resolved.check(fstatSync(file));
    const before = fstatSync(file, { bigint: true });
    if (fingerprintOf(before) !== fingerprint) throw new FileChangedError();
    if (end !== null) ftruncateSync(file, end);
    const size = end ?? Number(before.size);
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
    if (Number(after.size) !== size + bytes.length) throw new FileChangedError();
    const there = lstatSync(resolved.at, { bigint: true, throwIfNoEntry: false });
    if (there === undefined || fingerprintOf(there) !== fingerprintOf(after)) throw new FileChangedError();
    return { fingerprint: fingerprintOf(after), error: null };
  } catch (error) {
    throw readable(error, path);
  } finally {
    if (file !== null) closeSync(file);
    resolved.close();
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
  await withResolvedPath(table, (resolved) => replaceAt(resolved, fingerprint, write), fingerprint === null);
  const now = await look(table);
  if (now === null) throw new FileChangedError();
  return now;
}

async function replaceAt(
  resolved: ResolvedPath,
  fingerprint: Fingerprint | null,
  write: (file: FileHandle) => Promise<void>,
): Promise<void> {
  const temporary = temporaryOf(resolved);
  await rm(temporary, { force: true });
  const file = await open(temporary, 'wx', 0o666);
  try {
    try {
      if (fingerprint !== null) await copyOwner(resolved, file);
      await write(file);
      await file.sync();
    } finally {
      await file.close();
    }
    if (fingerprint === null) put(temporary, resolved.at);
    else {
      const there = lstatSync(resolved.at, { bigint: true, throwIfNoEntry: false });
      if (there === undefined || fingerprintOf(there) !== fingerprint) throw new FileChangedError();
      renameSync(temporary, resolved.at);
    }
  } finally {
    await rm(temporary, { force: true });
  }
  await syncAt(resolved.directory);
}

/** Leftovers of somebody who was killed are in the way of nobody, but ugly. Never fails. */
export async function removeLeftover(table: TableFile): Promise<void> {
  await withResolvedPath(table, (resolved) => rm(temporaryOf(resolved), { force: true })).catch(() => {});
}

/** Waits until the file is on the disk. */
function sync(table: TableFile): Promise<void> {
  return withResolvedPath(table, ({ at }) => syncAt(at, constants.O_NOFOLLOW));
}

async function syncAt(path: string, flags = 0): Promise<void> {
  const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK | flags);
  try {
    await file.sync();
  } catch (error) {
    // Some file systems can't, for directories.
    if (codeOf(error) !== 'EINVAL') throw error;
  } finally {
    await file.close();
  }
}

function temporaryOf(resolved: ResolvedPath): string {
  return resolved.beside(`.${basename(resolved.at)}.gpu-owner`);
}

/** Unlike a rename, a link never replaces what has come meanwhile. */
function put(temporary: string, path: string): void {
  try {
    linkSync(temporary, path);
  } catch (error) {
    if (codeOf(error) === 'EEXIST') throw new FileChangedError();
    // File systems without hard links.
    if (lstatSync(path, { throwIfNoEntry: false }) !== undefined) throw new FileChangedError();
    renameSync(temporary, path);
  }
}

/** @throws UnsafePathError */
async function copyOwner(from: ResolvedPath, to: FileHandle): Promise<void> {
  const old = await lstat(from.at);
  from.check(old);
  const own = await to.stat();
  // Only root can give files away; a group can be kept by its members.
  if (old.uid !== own.uid || old.gid !== own.gid) {
    await to.chown(old.uid, old.gid).catch(() => to.chown(own.uid, old.gid).catch(() => {}));
  }
  await to.chmod(old.mode & 0o777);
}

const TABLE_NAME = 'final_results.csv';

/** Where the table of an output directory is. Two names of one directory have one table. @param project absolute */
export function tablePath(project: string, outputDirectory: string): string {
  return join(realPath(resolve(project, outputDirectory), project), TABLE_NAME);
}

/**
 * The table in the directory of the project itself, where a later version of the original system has the rows of all output directories.
 * It is read, and never written. null: there is none
 */
export function commonTablePath(project: string): string | null {
  const path = tablePath(project, '.');
  return existsSync(path) ? path : null;
}

/** For people: from the project on, if it is in there. */
export function shownPath(project: string, path: string): string {
  const inProject = relative(realPath(project, project), path);
  return inProject.startsWith('..') ? path : inProject;
}

/** Tables with rows that may not be on the disk yet. */
export class FsyncQueue<T extends { readonly file: TableFile; forget(): void }> {
  /** When each was first written to. */
  private readonly tables = new Map<T, number>();

  add(table: T): void {
    if (!this.tables.has(table)) this.tables.set(table, now());
  }

  /** @param age how long they must have been written at least, in ms: many appends are one wait for the disk */
  async flush(age: number, onError: (table: T, error: unknown) => void): Promise<void> {
    for (const [table, since] of this.tables) {
      if (now() - since < age) continue;
      this.tables.delete(table);
      try {
        await sync(table.file);
      } catch (error) {
        // The file was removed, or the data was lost on its way to the disk: the next read tells which rows are there.
        table.forget();
        if (codeOf(error) !== 'ENOENT') onError(table, error);
      }
    }
  }
}
