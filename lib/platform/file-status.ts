import { lstatSync, type Stats, statSync } from 'node:fs';
import { errno, native, nativeOrNull } from '../native.ts';
import { textOf } from './small-files.ts';

// By the addon where there is one: its first call takes microseconds (native/bindings/system.cc).

/** What kind of file it is, whose, and which: two that are the same have the same device and inode. */
export interface FileStatus {
  kind: 'file' | 'directory' | 'link' | 'other';
  /** Permissions, 0 to 0o7777. */
  mode: number;
  uid: number;
  gid: number;
  device: number;
  inode: number;
  size: number;
  /** How many names it has (hard links). */
  links: number;
  /** When it, its owner or its mode was last changed, as text that is good for comparing only. */
  changed: string;
  /** The same in ms since 1970. */
  changedAt: number;
}

const KINDS: Record<number, FileStatus['kind']> = { 4: 'directory', 8: 'file', 10: 'link' };

// As native/bindings/system.cc fills it: mode, uid, gid, device, inode, seconds and nanoseconds of the change, size, links.
const numbers = new Float64Array(9);

/** Of the file itself, not of what a link leads to; null: there is nothing, or nothing that this process may see. */
export function statusOf(path: string): FileStatus | null {
  return ask(path, false) === 0 ? filled() : null;
}

/** Of an open file or directory. */
export function statusBehind(descriptor: number): FileStatus | null {
  return native().fileStatus(descriptor, false, numbers) === 0 ? filled() : null;
}

function filled(): FileStatus {
  const [mode = 0, uid = 0, gid = 0, device = 0, inode = 0, seconds = 0, nanoseconds = 0] = numbers;
  const [size = 0, links = 0] = numbers.subarray(7);
  const changed = `${seconds} ${nanoseconds}`;
  const changedAt = seconds * 1000 + nanoseconds / 1e6;
  const kind = kindOf(mode);
  return { kind, mode: mode & 0o7777, uid, gid, device, inode, size, links, changed, changedAt };
}

/** Whether it is a directory itself, and not a link that leads anywhere. */
export function isDirectory(path: string): boolean {
  return ask(path, false) === 0 && kindOf(numbers[0] ?? 0) === 'directory';
}

/** Whether nothing has that name, or a link leads nowhere. false also where it can't be told. */
export function isMissing(path: string): boolean {
  const error = -ask(path, true);
  return error === errno.ENOENT || error === errno.ENOTDIR;
}

/** Whether a file's owner is root. In a user namespace (rootless containers) the host's root shows as the overflow user. */
export function isRoot(uid: number): boolean {
  if (uid === 0) return true;
  const isNamespace = !/^\s*0\s+0\s+4294967295\s*$/.test(textOf('/proc/self/uid_map') ?? '');
  return isNamespace && uid === Number(textOf('/proc/sys/kernel/overflowuid') || 65534);
}

function kindOf(mode: number): FileStatus['kind'] {
  return KINDS[mode >> 12] ?? 'other';
}

/** Fills the numbers. @returns 0 or -errno */
function ask(path: string, follow: boolean): number {
  const addon = nativeOrNull();
  if (addon !== null) return addon.fileStatus(path, follow, numbers);
  let found: Stats;
  try {
    found = follow ? statSync(path) : lstatSync(path);
  } catch (error) {
    return (error as NodeJS.ErrnoException).errno ?? -errno.EACCES;
  }
  const { mode, uid, gid, dev, ino, ctimeMs, size, nlink } = found;
  numbers.set([mode, uid, gid, dev, ino, ctimeMs / 1000, 0, size, nlink]);
  return 0;
}
