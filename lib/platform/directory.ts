import { readSync } from 'node:fs';
import { resolve } from 'node:path';
import { errorCode } from '../errors.ts';
import { type NativeDirectory, native } from '../native.ts';
import { type FileStatus, pathIn, readLink, statusBehind, statusOf } from './files.ts';
import { errorReason, warnOnce } from './system.ts';

/** For files that any user must be able to write or lock: an exclusive lock takes a file open for writing. */
export const FOR_ALL = 0o666;
/** For files that others only read. */
export const FOR_READING = 0o644;
/** For secrets. */
const FOR_OWNER = 0o600;

const EIO = 5;

const MAX_INTERRUPTIONS = 100;
/** How many stay open for the next use. */
const MAX_KEPT = 16;
const kept = new Map<string, Directory>();

/**
 * A directory that others may change: lock directories, and those of other tools. The directory is held open, and files in it
 * are made, opened and removed through its descriptor alone (native/locks/directory.h), so a link put in its place leads
 * nowhere. Paths are for looking.
 */
export class Directory {
  readonly path: string;
  readonly #native: NativeDirectory;
  #status: FileStatus;

  private constructor(path: string, native: NativeDirectory, status: FileStatus) {
    this.path = path;
    this.#native = native;
    this.#status = status;
  }

  /**
   * Opens what is at a path now.
   * @param mode to create it with if it is missing, despite the umask
   * @returns -errno where there is none: ELOOP for links that others may have put there, ENOTDIR for what is no directory
   */
  static open(path: string, mode?: number): Directory | number {
    const known = kept.get(path);
    if (known !== undefined) {
      const { device, inode } = known.#status;
      const found = statusOf(path);
      if (found?.device === device && found.inode === inode) {
        known.#status = found;
        return known;
      }
      kept.delete(path);
    }
    const opened = new (native().Directory)(path.startsWith('/') ? path : resolve(path), mode);
    const error = opened.error();
    if (error !== 0) return error;
    const status = statusBehind(opened.descriptor());
    if (status === null) return -EIO; // the directory is open: the disk or the server fails
    const directory = new Directory(path, opened, status);
    const [oldest = ''] = kept.keys();
    if (kept.size >= MAX_KEPT) kept.delete(oldest);
    kept.set(path, directory);
    return directory;
  }

  /** As {@link open}; null: there is none that can be used. */
  static at(path: string): Directory | null {
    const opened = Directory.open(path);
    return typeof opened === 'number' ? null : opened;
  }

  /** As it was when it was last opened. */
  get status(): FileStatus {
    return this.#status;
  }

  /** For programs that are started: valid as long as this object is. */
  get descriptor(): number {
    return this.#native.descriptor();
  }

  pathOf(name: string): string {
    return pathIn(this.path, name);
  }

  /** Opens a file for reading and writing; it is made if missing. @returns a descriptor or -errno */
  openShared(name: string, size = 0, mode = FOR_ALL): number {
    return this.#native.openShared(name, size, mode);
  }

  /** Opens a file for reading only, also with several names or another mode. @returns a descriptor or -errno */
  openForProbe(name: string): number {
    return this.#native.openForProbe(name);
  }

  /** Opens a file for reading only, for a shared lock, under the rules of `openShared`. @returns a descriptor or -errno */
  openToShare(name: string): number {
    return this.#native.openToShare(name);
  }

  /** Opens the directory itself, to lock its bytes in shared mode. @returns a descriptor or -errno */
  openItself(): number {
    return this.#native.openItself();
  }

  /** A descriptor of the directory, to probe its bytes, as long as this object is used; or -errno. */
  get itself(): number {
    return this.#native.itself();
  }

  /** Makes a file that others only read, at once with its content. @returns a descriptor, or -errno: EEXIST where there is anything */
  create(name: string, bytes: Uint8Array): number {
    return this.#native.create(name, bytes, FOR_READING, false);
  }

  /** Makes a file for this user alone, with its content, and with a lock that the descriptor holds from the first moment on. */
  createLocked(name: string, bytes: Uint8Array): number {
    return this.#native.create(name, bytes, FOR_OWNER, true);
  }

  /** Removes the descriptor's file, if it still has this name. Whether it is gone. */
  remove(name: string, descriptor: number): boolean {
    return this.#native.remove(name, descriptor) === 0;
  }

  /** The status of a file; null: there is nothing, or nothing that this process may see. */
  statusOf(name: string): FileStatus | null {
    return statusOf(this.pathOf(name));
  }

  /** Whether others find the descriptor's file under this name, and this directory where it was. */
  isNamed(descriptor: number, name: string): boolean {
    return native().fileIsNamed(descriptor, this.pathOf(name));
  }

  /** As access(2). @param name '.' for the directory itself @returns 0 or -errno */
  access(name: string, mode: number): number {
    return this.#native.access(name, mode);
  }

  /** The names of everything in it; none where it can't be read. */
  names(): string[] {
    return this.#native.names();
  }
}

/** A block that begins with a text, cut if need be, and ends with a line break. */
export function textBlock(text: string, length: number): Buffer {
  const block = Buffer.alloc(length, ' ');
  block.write(text, 0, length - 1);
  block[length - 1] = 0x0a;
  return block;
}

/**
 * Reads a block of a file that others may have damaged, and on which nothing depends: what can't be read counts as empty, with a warning.
 * @returns at most this many bytes
 */
export function readBlock(
  descriptor: number,
  length: number,
  position = 0,
  block = Buffer.allocUnsafe(length),
): Buffer {
  for (let tries = 1; ; tries++) {
    try {
      return block.subarray(0, readSync(descriptor, block, 0, length, position));
    } catch (error) {
      const code = errorCode(error);
      if (code === 'EINTR' && tries < MAX_INTERRUPTIONS) continue;
      const path = readLink(`/proc/self/fd/${descriptor}`) ?? 'a file';
      warnOnce(`${path} can't be read: ${errorReason(error)}. This process goes on without what is in it.`);
      return block.subarray(0, 0);
    }
  }
}
