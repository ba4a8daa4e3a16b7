// The locks of all processes, as the kernel shows them. Looking takes none.

import { closeSync, fstatSync, openSync, readdirSync, readSync } from 'node:fs';
import { ifPossible } from '../errors.ts';
import { EXCLUSIVE, native, OFD } from '../native.ts';
import { readSmallFile, statusAt } from './files.ts';
import { describeProcess, processIds } from './processes.ts';
import { now } from './time.ts';

/** A process that has a lock, as far as the kernel shows it to this user: one's own, to root all, and whose lock is a POSIX one. */
export interface LockOwner {
  pid: number;
  uid: number | null;
  user: string | null;
  name: string | null;
  /** Whether the open file has another lock, of an epoch, as claims have besides that of the lease or of a decision. */
  isClaim: boolean;
}

/** A lock that is held. */
export interface KernelLock {
  kind: 'FLOCK' | 'OFDLCK' | 'POSIX';
  exclusive: boolean;
  /** The process that took it; null for open-file-description locks, which belong to no process, and where it isn't visible. */
  pid: number | null;
  /** 'major:minor' in decimal. */
  device: string;
  inode: number;
  start: number;
  /** The last byte; infinite: to the end of the file. */
  last: number;
}

/** An open file with locks that can stand in a claim's way. */
export interface OpenFile {
  pid: number;
  /** The number of its descriptor. */
  number: string;
  locks: readonly KernelLock[];
}

const SEARCH_TIMEOUT_MS = 500;

const LOCK_READINGS = 5;

/** The locks of all processes; null where they can't be read, or are too many. Locks that are only waited for are left out. */
export function readLocks(): KernelLock[] | null {
  const text = kernelLocks();
  return text === null ? null : parseLocks(text);
}

/** @param text of /proc/locks, or of a file in /proc/PID/fdinfo */
export function parseLocks(text: string): KernelLock[] {
  const line =
    /^(?:lock:\t)?\d+: (FLOCK|OFDLCK|POSIX) +\w+ +(READ|WRITE) +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) (\d+) (\d+|EOF)$/gm;
  return [...text.matchAll(line)].map(([, kind, mode, pid, major = '', minor = '', inode, start, last]) => ({
    kind: kind === 'FLOCK' || kind === 'POSIX' ? kind : 'OFDLCK',
    exclusive: mode === 'WRITE',
    pid: Number(pid) > 0 ? Number(pid) : null,
    device: `${Number.parseInt(major, 16)}:${Number.parseInt(minor, 16)}`,
    inode: Number(inode),
    start: Number(start),
    last: last === 'EOF' ? Number.POSITIVE_INFINITY : Number(last),
  }));
}

/** Upper bound on a reading of the kernel's list: any user can take a million locks. 33,000 locks. */
const MAX_LIST_BYTES = 2 ** 21;

/**
 * Five readings of /proc/locks; [] where it can't be read, or is too long. Five because between two pages the kernel
 * skips locks while others come and go: with two processes that did nothing else, one that was held all the time was missing in
 * 29 of 10,765 readings (Linux 6.18), and on a busy machine once in three readings together.
 */
function readLists(): string[] {
  const list = Buffer.allocUnsafe(MAX_LIST_BYTES);
  const texts: string[] = [];
  while (texts.length < LOCK_READINGS) {
    const file = ifPossible(() => openSync('/proc/locks', 'r'), -1);
    if (file < 0) return [];
    let size = 0;
    try {
      for (let length = -1; length !== 0; size += length)
        length = readSync(file, list, size, list.length - size, null);
    } finally {
      closeSync(file);
    }
    if (size === list.length) return [];
    texts.push(list.toString('latin1', 0, size));
  }
  return texts;
}

/** The lines of /proc/locks, but with the number 0 for all; null where it can't be read, or is too long. */
export function kernelLocks(): string | null {
  const lines = readLists().flatMap((text) => text.split('\n').map((line) => line.replace(/^\d+/, '0')));
  return lines.length === 0 ? null : [...new Set(lines)].join('\n');
}

/** The open files of these processes that have locks, as far as this user may look within the time; default: of all. */
export function lockedFiles(timeoutMs = SEARCH_TIMEOUT_MS, pids?: readonly number[]): OpenFile[] {
  return searchLockedFiles(timeoutMs, pids).files;
}

/** As {@link lockedFiles}, with the processes for which there was too little time. */
export function searchLockedFiles(
  timeoutMs: number,
  pids: readonly number[] = processIds(),
): { files: OpenFile[]; missed: number[] } {
  const end = now() + timeoutMs;
  const files: OpenFile[] = [];
  const missed: number[] = [];
  for (const pid of pids) {
    for (const number of now() > end ? [] : namesIn(`/proc/${pid}/fdinfo`)) {
      if (now() > end) break;
      const text = readSmallFile(`/proc/${pid}/fdinfo/${number}`) ?? '';
      const locks = text.includes('lock:') ? parseLocks(text).filter(({ kind }) => kind !== 'FLOCK') : [];
      if (locks.length > 0) files.push({ pid, number, locks });
    }
    if (now() > end) missed.push(pid);
  }
  return { files, missed };
}

/** The processes with a lock that reaches this byte. @param files where to look, for those who ask more than once */
export function ownersOf(descriptor: number, byte: number, files?: readonly OpenFile[]): LockOwner[] {
  // The kernel tells everybody whose a POSIX lock is. Beside those of shares it may be anybody's.
  const pid = files === undefined ? native().lockHolder(descriptor, OFD, EXCLUSIVE, byte, 1) : 0;
  if (pid > 0) return [ownerOf(pid, false)];
  const { dev, ino } = fstatSync(descriptor);
  const owners = new Map<number, LockOwner>();
  for (const { pid, number, locks } of files ?? lockedFiles()) {
    const reaches = ({ inode, start, last }: KernelLock) => inode === ino && start <= byte && byte <= last;
    if (!locks.some(reaches)) continue;
    const file = statusAt(`/proc/${pid}/fd/${number}`);
    if (file?.device !== dev || file.inode !== ino) continue;
    owners.set(
      pid,
      ownerOf(
        pid,
        locks.some(({ start, last }) => start === last && start > byte),
      ),
    );
  }
  return [...owners.values()];
}

/** "python3 (pid 4711, mallory)" */
export function describeOwner({ pid, user, name }: LockOwner): string {
  return `${name ?? 'a process'} (pid ${pid}, ${user ?? '?'})`;
}

export function ownerOf(pid: number, isClaim: boolean): LockOwner {
  const { uid, user, name } = describeProcess(pid);
  return { pid, uid, user, name, isClaim };
}

function namesIn(directory: string): string[] {
  // the process is another user's, or has ended meanwhile
  return ifPossible(() => readdirSync(directory), []);
}
