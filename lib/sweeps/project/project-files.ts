import { chmodSync, chownSync, lstatSync, mkdirSync, realpathSync, type Stats, statSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';
import { errorCode, ifPossible } from '../../errors.ts';
import { networkFileSystem, statusOf, userName } from '../../platform/index.ts';

// docs/decisions/003-project-files.md has the rules and the reasons.

/** Thrown for a path that another user could lead elsewhere. The message is for people, and names the remedy. */
export class UnsafePathError extends Error {}

const WRITABLE_BY_ALL = 0o002;
const STICKY = 0o1000;
/** File systems that show everybody's files with one mode, as mounted: it says nothing of who may write. */
const WITHOUT_MODES = ['9p', 'CIFS', 'SMB'];

/** Resolves all links in a path, as far as it exists. */
export function realPath(path: string): string {
  const found = ifPossible(() => realpathSync(path), null);
  const parent = dirname(path);
  return found ?? (parent === path ? path : join(realPath(parent), basename(path)));
}

/**
 * Says why users other than the owner and the group of a directory could exchange it or what is in it; null: they couldn't.
 * A directory that isn't there yet is judged by those above it.
 * @param owner of the project: directories of this user may be used as well
 */
export function whyReplaceable(path: string, owner: number): string | null {
  const real = realPath(path);
  return whyUnsafe(path, owner) ?? (real === path ? null : whyUnsafe(real, owner));
}

function whyUnsafe(path: string, owner: number): string | null {
  const owners = [0, process.geteuid?.(), owner];
  let below: { path: string; uid: number } | null = null;
  for (let directory = path, isThere = true; ; directory = dirname(directory)) {
    const entry = statusOf(directory);
    const stat = statusOf(`${directory}/`);
    if (entry === null || stat === null) isThere = false;
    else {
      const { mode, uid } = stat;
      if ((mode & WRITABLE_BY_ALL) !== 0 && !hasNoModes(directory)) {
        if (below === null && isThere) return `everybody may write to ${directory}: chmod o-w ${directory}`;
        if ((mode & STICKY) === 0)
          return `everybody may replace what is in ${directory}: chmod o-w ${directory}, or chmod +t`;
        if (below !== null && ![...owners, uid].includes(below.uid))
          return `${below.path} belongs to ${userName(below.uid)} and is in a directory that everybody may write to: remove it, or use another directory`;
      }
      below = { path: directory, uid: entry.uid };
    }
    if (directory === '/') return null;
  }
}

function hasNoModes(directory: string): boolean {
  return WITHOUT_MODES.includes(networkFileSystem(directory) ?? '');
}

/**
 * Makes the directory of a file that belongs to a project, and those above it. The project was checked when it was opened, so only
 * directories outside of it are checked here.
 * @throws UnsafePathError, NodeJS.ErrnoException
 */
export function makeDirectory(path: string, project: string): void {
  makeWithParents(path);
  if (isInside(path, project) && isInside(realPath(path), project)) return;
  const why = whyReplaceable(path, statSync(project).uid);
  if (why !== null) throw new UnsafePathError(why);
}

export function isInside(path: string, directory: string): boolean {
  const rest = relative(directory, path);
  return rest !== '..' && !rest.startsWith('../');
}

/** Unlike mkdir of Node.js with `recursive`, it ends where nothing can be made, as in /proc. */
function makeWithParents(path: string, isLast = false): void {
  try {
    mkdirSync(path);
  } catch (error) {
    if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return;
    if (isLast || errorCode(error) !== 'ENOENT') throw error;
    makeWithParents(dirname(path));
    makeWithParents(path, true);
  }
}

/** Refuses what is in the place of a log and isn't one. @throws UnsafePathError */
export function refuseOtherThanFile(path: string): void {
  const there = lstatSync(path, { throwIfNoEntry: false });
  if (there?.isSymbolicLink())
    throw new UnsafePathError(`${path} is a symbolic link, which is not followed: remove it`);
  if (there?.isFile() === false) throw new UnsafePathError(`${path} is not a regular file: move it away`);
}

/** Whether a directory is shared by its group: that may write to it, and not everybody may. */
export function isShared({ mode }: Pick<Stats, 'mode'>): boolean {
  return (mode & 0o022) === 0o020;
}

/**
 * Gives a file or directory that this process has made to those who take part, whatever the umask.
 * @param group that it shares
 */
export function setSharedOwner(path: string, group: number): void {
  const stat = lstatSync(path);
  // A user who isn't in the group may not: then it is for this user alone, in fact.
  if (stat.gid !== group) ifPossible(() => chownSync(path, -1, group), undefined);
  chmodSync(path, stat.isDirectory() ? 0o2770 : 0o660);
}

/**
 * Takes from others the permissions that a copy or a umask gave them: a lock for reading is enough to stall a queue. Does nothing to
 * files of other users.
 * @returns whether everybody could write to it
 */
export function restrictMode(path: string, forGroup: boolean): boolean {
  const stat = lstatSync(path, { throwIfNoEntry: false });
  const allowed = forGroup ? 0o7770 : 0o7700;
  const isOwn = stat?.uid === process.geteuid?.() && !stat?.isSymbolicLink();
  if (stat === undefined || !isOwn || (stat.mode & 0o7777 & ~allowed) === 0) return false;
  // Some file systems have no modes.
  return ifPossible(() => {
    chmodSync(path, stat.mode & allowed);
    return (stat.mode & WRITABLE_BY_ALL) !== 0;
  }, false);
}
