import {
  chmodSync,
  chownSync,
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  mkdirSync,
  openSync,
  readlinkSync,
  type Stats,
  statSync,
} from 'node:fs';
import { basename, dirname, isAbsolute, join, relative, resolve } from 'node:path';
import { isRoot, userName } from '../../platform/index.ts';

// docs/decisions/003-project-files.md has the rules and the reasons.

/** Somebody else could lead what is written there to another file. The message is for people, and names the remedy. */
export class UnsafePathError extends Error {}

/** Node.js has no name for it: a descriptor that only stands for the file. Needs no permission to read. */
const O_PATH = 0o10000000;
/** As many as the kernel follows. */
const MAX_LINKS = 40;
const WRITABLE_BY_ALL = 0o002;
const STICKY = 0o1000;

/** Where a file is, or would be: its directory by a descriptor, so that nobody can exchange that between two steps. */
export class ResolvedPath {
  /** To be used at once, while this is open: the name of the file below the descriptor. */
  readonly at: string;
  /** For people. Symbolic links in it are resolved. */
  readonly path: string;
  readonly #directory: Handle;
  readonly #owner: number;

  /** @param owner of the project */
  constructor(directory: Handle, name: string, owner: number) {
    this.#directory = directory;
    this.#owner = owner;
    this.at = directory.at(name);
    this.path = join(directory.path, name);
  }

  /** The name of another file in the same directory, as `at`. */
  beside(name: string): string {
    return this.#directory.at(name);
  }

  /** For fsync. */
  get directory(): string {
    return this.#directory.at('.');
  }

  /** Whether a file that was opened here may be used. @throws UnsafePathError */
  check(file: Pick<Stats, 'uid' | 'nlink'> & { isFile(): boolean }): void {
    const { path } = this;
    if (!file.isFile()) throw new UnsafePathError(`${path} is not a regular file: move it away`);
    refuseOtherOwner(this.#directory.stat, file.uid, path, this.#owner);
    const { uid, mode } = this.#directory.stat;
    const isOurs = isOwn(uid) && (mode & WRITABLE_BY_ALL) === 0;
    if (file.nlink > 1 && !isOurs) {
      throw new UnsafePathError(
        `${path} has ${file.nlink} names (hard links) in a directory that others can write to: copy it, and remove the original`,
      );
    }
  }

  close(): void {
    this.#directory.close();
  }
}

export interface Locating {
  /** Makes directories that aren't there. */
  create?: boolean;
  /** Follows a link in place of the file, if its owner may lay it. Otherwise a link is refused. */
  follow?: boolean;
}

/**
 * Resolves the path of a file that belongs to a project, as {@link openDirectory} finds directories.
 * @throws UnsafePathError, NodeJS.ErrnoException
 */
export function locate(
  path: string,
  project: string,
  { create = false, follow = false }: Locating = {},
): ResolvedPath {
  return readably(path, () => new Walk(project).file(path, create, follow));
}

/**
 * Whether a directory that belongs to a project may be written to, as far as other users are concerned.
 * @param act gets a path that is good while it runs
 * @throws UnsafePathError, NodeJS.ErrnoException
 */
export function inDirectory<T>(
  path: string,
  project: string,
  act: (at: string, path: string, stat: Stats) => T,
): T {
  return readably(path, () => {
    const directory = new Walk(project).directory(path, false);
    try {
      return act(directory.at('.'), directory.path, directory.stat);
    } finally {
      directory.close();
    }
  });
}

/** The path with all links resolved, as far as it exists and may be used: what is behind a link that may not be followed keeps its name. */
export function realPath(path: string, project: string): string {
  try {
    return inDirectory(path, project, (_, real) => real);
  } catch {
    const parent = dirname(path);
    return parent === path ? path : join(realPath(parent, project), basename(path));
  }
}

/** Whether a directory is shared by its group: that may write to it, and not everybody may. */
export function isShared({ mode }: Pick<Stats, 'mode'>): boolean {
  return (mode & 0o022) === 0o020;
}

/**
 * Gives a file or directory that this process has made to those who take part, whatever the umask.
 * @param group that it shares; null: it is for this user alone
 */
export function giveTo(path: string, group: number | null): void {
  const file = new Handle(openSync(path, O_PATH | constants.O_NOFOLLOW));
  try {
    if (group !== null && file.stat.gid !== group) {
      try {
        chownSync(file.at(), -1, group);
      } catch {} // a group that one isn't in: then it is for this user alone, in fact
    }
    const isDirectory = file.stat.isDirectory();
    chmodSync(file.at(), group === null ? (isDirectory ? 0o700 : 0o600) : isDirectory ? 0o2770 : 0o660);
  } finally {
    file.close();
  }
}

/**
 * Takes from others what older versions gave them: a lock for reading is enough to stall a queue. Does nothing to what belongs to somebody else.
 * @returns whether everybody could write to it
 */
export function narrow(path: string, forGroup: boolean): boolean {
  let file: Handle;
  try {
    file = new Handle(openSync(path, O_PATH | constants.O_NOFOLLOW));
  } catch {
    return false; // there is none
  }
  try {
    const { mode, uid } = file.stat;
    const allowed = forGroup ? 0o7770 : 0o7700;
    if (uid !== process.geteuid?.() || (mode & 0o7777 & ~allowed) === 0) return false;
    chmodSync(file.at(), mode & allowed);
    return (mode & WRITABLE_BY_ALL) !== 0;
  } catch {
    return false; // a file system that has no modes
  } finally {
    file.close();
  }
}

/** The first of a directory and those above it in which everybody may exchange what is there; null: none. @param path links resolved */
export function exchangeable(path: string): string | null {
  for (let directory = path; ; directory = dirname(directory)) {
    const { mode } = statSync(directory);
    if ((mode & WRITABLE_BY_ALL) !== 0 && (mode & STICKY) === 0) return directory;
    if (directory === '/') return null;
  }
}

/** A directory by its descriptor. */
class Handle {
  readonly stat: Stats;
  readonly #descriptor: number;

  constructor(descriptor: number) {
    this.#descriptor = descriptor;
    this.stat = fstatSync(descriptor);
  }

  /** The path of an entry of that name; without a name, of the directory itself. */
  at(name?: string): string {
    return `/proc/self/fd/${this.#descriptor}${name === undefined ? '' : `/${name}`}`;
  }

  /** As it is called by now. */
  get path(): string {
    return readlinkSync(this.at());
  }

  close(): void {
    closeSync(this.#descriptor);
  }
}

/**
 * Goes to a directory one name at a time. In a directory that everybody may write to, only what this user, root, the directory's owner or
 * the project's has put there is used. Of links that somebody else has laid, only those to what is theirs.
 */
class Walk {
  readonly #project: string;
  readonly #owner: number;
  #links = 0;

  constructor(project: string) {
    this.#project = resolve(project);
    const top = this.#top();
    this.#owner = top.stat.uid;
    top.close();
  }

  directory(path: string, create: boolean): Handle {
    const rest = relative(this.#project, path);
    const isInside = rest !== '..' && !rest.startsWith('../');
    const from = isInside ? this.#top() : new Handle(openSync('/', O_PATH | constants.O_DIRECTORY));
    try {
      return this.#steps(from, isInside ? rest : path, create);
    } finally {
      from.close();
    }
  }

  file(path: string, create: boolean, follow: boolean): ResolvedPath {
    return this.#file(this.directory(dirname(path), create), basename(path), follow);
  }

  /** Where the user works, however that is reached. */
  #top(): Handle {
    return new Handle(openSync(this.#project, O_PATH | constants.O_DIRECTORY));
  }

  /** @param directory is closed, or goes into the answer */
  #file(directory: Handle, name: string, follow: boolean): ResolvedPath {
    try {
      const link = lstatSync(directory.at(name), { throwIfNoEntry: false });
      if (!link?.isSymbolicLink()) return new ResolvedPath(directory, name, this.#owner);
      const shown = join(directory.path, name);
      if (!follow) throw new UnsafePathError(`${shown} is a symbolic link, which is not followed: remove it`);
      const target = this.#target(directory, name, link);
      const resolved = this.#file(this.#from(directory, dirname(target)), basename(target), true);
      const owner = lstatSync(resolved.at, { throwIfNoEntry: false })?.uid;
      if (!isOwn(link.uid) && owner !== link.uid) {
        resolved.close();
        throw strangeLink(shown, link.uid);
      }
      directory.close();
      return resolved;
    } catch (error) {
      directory.close();
      throw error;
    }
  }

  #from(base: Handle, path: string): Handle {
    return isAbsolute(path) ? this.directory(path, false) : this.#steps(base, path, false);
  }

  /** @param base stays open */
  #steps(base: Handle, path: string, create: boolean): Handle {
    let at = base;
    try {
      for (const name of ['.', ...path.split('/')]) {
        if (name === '' || (name === '.' && at !== base)) continue;
        const next = this.#step(at, name, create);
        if (at !== base) at.close();
        at = next;
      }
      return at;
    } catch (error) {
      if (at !== base) at.close();
      throw error;
    }
  }

  #step(at: Handle, name: string, create: boolean): Handle {
    const entry = this.#enter(at, name, create);
    const { stat } = entry;
    try {
      if (name === '.' || name === '..') return entry;
      const shown = () => join(at.path, name);
      refuseOtherOwner(at.stat, stat.uid, shown, this.#owner);
      if (stat.isDirectory()) return entry;
      if (!stat.isSymbolicLink()) throw systemError('ENOTDIR', shown());
      const next = this.#from(at, this.#target(at, name, stat));
      if (!isOwn(stat.uid) && next.stat.uid !== stat.uid) {
        next.close();
        throw strangeLink(shown(), stat.uid);
      }
      entry.close();
      return next;
    } catch (error) {
      entry.close();
      throw error;
    }
  }

  #enter(at: Handle, name: string, create: boolean): Handle {
    const open = () => new Handle(openSync(at.at(name), O_PATH | constants.O_NOFOLLOW));
    try {
      return open();
    } catch (error) {
      if (!create || (error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
    try {
      mkdirSync(at.at(name));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error; // somebody else was quicker
    }
    return open();
  }

  #target(at: Handle, name: string, link: Stats): string {
    const shown = join(at.path, name);
    if (++this.#links > MAX_LINKS) throw systemError('ELOOP', shown);
    const { mode } = at.stat;
    // Anybody could exchange it between two looks.
    if ((mode & WRITABLE_BY_ALL) !== 0 && (mode & STICKY) === 0) {
      throw new UnsafePathError(
        `${shown} is a symbolic link in a directory where everybody may replace it: chmod o-w ${at.path}`,
      );
    }
    refuseOtherOwner(at.stat, link.uid, shown, this.#owner);
    return readlinkSync(at.at(name));
  }
}

function isOwn(uid: number): boolean {
  return uid === process.geteuid?.() || isRoot(uid);
}

/** @throws UnsafePathError for what somebody else has put into a directory that everybody may write to */
function refuseOtherOwner(
  directory: Stats,
  uid: number,
  shown: string | (() => string),
  owner: number,
): void {
  if ((directory.mode & WRITABLE_BY_ALL) === 0) return; // its owner, and its group, decide what is in it
  if (isOwn(uid) || uid === directory.uid || uid === owner) return;
  const path = typeof shown === 'string' ? shown : shown();
  throw new UnsafePathError(
    `${path} belongs to ${userName(uid)} and is in a directory that everybody may write to: remove it, or use another directory`,
  );
}

function strangeLink(path: string, uid: number): UnsafePathError {
  return new UnsafePathError(
    `${path} is a symbolic link of ${userName(uid)} to a file of another user, and is not followed: remove it, or name its target`,
  );
}

function systemError(code: 'ENOTDIR' | 'ELOOP', path: string): NodeJS.ErrnoException {
  const errno = code === 'ENOTDIR' ? -20 : -40;
  return Object.assign(new Error(`${code}: ${path}`), { code, errno, path });
}

function readably<T>(path: string, act: () => T): T {
  try {
    return act();
  } catch (error) {
    throw readable(error, path);
  }
}

/** Paths below descriptors, in errors of the system, say nothing to people. @param path is named instead */
export function readable(error: unknown, path: string): unknown {
  const { errno, code, syscall, path: where = '' } = error as NodeJS.ErrnoException;
  if (errno === undefined || !where.startsWith('/proc/self/fd/')) return error;
  const message = `${code}: ${syscall ?? 'open'} '${path}'`;
  return Object.assign(new Error(message, { cause: error }), { errno, code, syscall, path });
}
