import { fstatSync, readSync } from 'node:fs';
import type { ConventionName } from '../config/index.ts';
import { ifPossible } from '../errors.ts';
import type { LeaseInfo } from '../gpus/index.ts';
import { errno, native } from '../native.ts';
import {
  type Directory,
  describeProcess,
  type FileStatus,
  MAX_USER_NAME_LENGTH,
  readLocks,
  sanitize,
  userName,
} from '../platform/index.ts';

/** Lock files of others have some hundred bytes. */
const MAX_BYTES = 64 * 1024;

/** How long a file may be without its content, in ms: others make it first and write it later. */
const WRITE_TIMEOUT_MS = 10_000;
const MAX_PID = 2 ** 22;

/** A file that has the name of another tool's lock file. Anybody may have put it there. */
export type ForeignFile =
  | { state: 'missing' }
  /** A plain file with one name. @property fresh whether it was written only just now */
  | { state: 'file'; text: string; uid: number; inode: number; fresh: boolean }
  /** A plain file that we may not read. */
  | { state: 'unreadable'; uid: number }
  /** A link, a directory, a FIFO, a file with several names, one that is too large: no tool's lock, and not ours to touch. */
  | { state: 'strange' };

/** Reads a file without following links and without blocking. */
export function readForeign(directory: Directory, name: string): ForeignFile {
  const descriptor = directory.openForProbe(name);
  if (descriptor === -errno.ENOENT) return { state: 'missing' };
  if (descriptor < 0) {
    const stat = directory.statusOf(name);
    if (stat === null) return { state: 'missing' };
    const denied = descriptor === -errno.EACCES && stat.kind === 'file';
    return denied ? { state: 'unreadable', uid: stat.uid } : { state: 'strange' };
  }
  try {
    return contentsOf(descriptor);
  } finally {
    native().fileClose(descriptor);
  }
}

function contentsOf(descriptor: number): ForeignFile & { state: 'file' | 'strange' } {
  const strange = { state: 'strange' } as const;
  return ifPossible(() => {
    const { uid, ino, size, mtimeMs, nlink } = fstatSync(descriptor);
    if (size > MAX_BYTES || nlink > 1) return strange;
    const buffer = Buffer.alloc(MAX_BYTES);
    const length = readSync(descriptor, buffer, 0, MAX_BYTES, 0);
    const age = Date.now() - mtimeMs;
    const fresh = age > -1_000 && age < WRITE_TIMEOUT_MS;
    return { state: 'file', text: buffer.toString('utf8', 0, length), uid, inode: ino, fresh } as const;
  }, strange);
}

/** Removes a lock file of others whose holder is dead, if it is still the one that was read. Whether it is gone. */
export function removeStale(
  directory: Directory,
  name: string,
  read: ForeignFile & { state: 'file' },
): boolean {
  const descriptor = directory.openForProbe(name);
  if (descriptor < 0) return descriptor === -errno.ENOENT;
  try {
    const again = contentsOf(descriptor);
    if (again.state !== 'file' || again.inode !== read.inode || again.text !== read.text) return false;
    return directory.remove(name, descriptor);
  } finally {
    native().fileClose(descriptor);
  }
}

/** A number that can be a process's: PIDs in files can be anything. */
export function asPid(value: unknown): number | null {
  return Number.isInteger(value) && Number(value) > 0 && Number(value) <= MAX_PID ? Number(value) : null;
}

/** Whether such a process lives; also one of another user, whom we may not signal. */
export function isAlive(pid: number): boolean {
  return describeProcess(pid).alive === 'alive';
}

/** A holder as messages and listings show it. */
export function holderInfo(
  convention: ConventionName,
  { pid = null, uid = null, user, since = null }: HolderFacts,
): LeaseInfo {
  const described = pid === null ? null : describeProcess(pid);
  return {
    user:
      sanitize(user, MAX_USER_NAME_LENGTH) || described?.user || (uid === null ? 'somebody' : userName(uid)),
    uid: described?.uid ?? uid,
    pid,
    host: null,
    command: described?.name ?? null,
    since,
    convention,
  };
}

interface HolderFacts {
  pid?: number | null;
  uid?: number | null;
  user?: unknown;
  /** ISO 8601 */
  since?: string | null;
}

/**
 * The holders of exclusive flocks (only shares of ours share them), by `inode`, as far as this PID namespace knows. Looking at /proc/locks takes nothing, where an attempt to
 * take the lock would for a moment stand in the way of its owners.
 */
export function flockHolders(): { file: string; pid: number }[] {
  return (readLocks() ?? [])
    .filter(({ kind, exclusive }) => kind === 'FLOCK' && exclusive)
    .map(({ device, inode, pid }) => ({ file: `${device}:${inode}`, pid: pid ?? 0 }));
}

/** A file as /proc/locks names it. */
export function nameInLocks({ device, inode }: Pick<FileStatus, 'device' | 'inode'>): string {
  const major = Math.floor(device / 256) % 4096;
  const minor = (device % 256) + 256 * (Math.floor(device / 2 ** 20) % 2 ** 12);
  return `${major}:${minor}:${inode}`;
}
