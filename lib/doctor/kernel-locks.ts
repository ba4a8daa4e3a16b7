import { native } from '../native.ts';
import { kernelLocks } from '../platform/index.ts';
import { namesIn, statOf, textOf } from './files.ts';
import { mountOf, readMounts } from './mounts.ts';

/** A lock that somebody holds, as /proc/locks has it. Nothing is taken to learn of it. */
export interface KernelLock {
  kind: 'FLOCK' | 'OFDLCK' | 'POSIX';
  exclusive: boolean;
  /** Of who took it; null for open-file-description locks, which belong to no process, and where it isn't visible. */
  pid: number | null;
  /** 'major:minor' in decimal, and the inode's number. */
  device: string;
  inode: number;
  start: number;
}

/** The locks of this machine; none where that can't be read. Those that are waited for are left out. */
export function readLocks(): KernelLock[] {
  return parseLocks(kernelLocks() ?? '');
}

export function parseLocks(text: string): KernelLock[] {
  const line =
    /^(?:lock:\t)?\d+: (FLOCK|OFDLCK|POSIX) +\w+ +(READ|WRITE) +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) (\d+) /gm;
  return [...text.matchAll(line)].map(([, kind, mode, pid, major, minor, inode, start]) => ({
    kind: kind as KernelLock['kind'],
    exclusive: mode === 'WRITE',
    pid: Number(pid) > 0 ? Number(pid) : null,
    device: `${Number.parseInt(major as string, 16)}:${Number.parseInt(minor as string, 16)}`,
    inode: Number(inode),
    start: Number(start),
  }));
}

const LOOKS = 5;
const BETWEEN = 250; // ms

/** A lock of an open file, and who has that open. */
export interface LastingLock {
  start: number;
  pid: number;
  /** Where all locks of that open file begin. */
  starts: readonly number[];
}

/**
 * The open-file-description locks on a file that last longer than a second, as far as this user may look into the processes that have
 * it open: one's own, or all for root. Whether a process is suspended, no state in /proc tells for sure.
 */
export function lastingLocks(path: string, exclusive: boolean): LastingLock[] {
  const device = mountOf(path, readMounts())?.device;
  const inode = statOf(path)?.ino;
  const matches = (lock: KernelLock) =>
    lock.kind === 'OFDLCK' && lock.exclusive === exclusive && lock.device === device && lock.inode === inode;
  if (!readLocks().some(matches)) return [];
  const startsIn = (file: string) =>
    parseLocks(textOf(file))
      .filter(matches)
      .map(({ start }) => start);
  let found = descriptorFiles()
    .map(({ pid, file }) => ({ pid, file, starts: startsIn(file) }))
    .flatMap((each) => (each.starts[0] === undefined ? [] : [{ ...each, start: each.starts[0] }]));
  for (let look = 1; look < LOOKS && found.length > 0; look++) {
    native().processSleep(BETWEEN);
    found = found.filter(({ file, start }) => startsIn(file)[0] === start);
  }
  return found.map(({ pid, start, starts }) => ({ pid, start, starts }));
}

/** Which processes have at least so many open-file-description locks on a file, as far as this user may look into them. */
export function lockersOf(path: string, least: number): { pid: number; locks: number }[] {
  const device = mountOf(path, readMounts())?.device;
  const inode = statOf(path)?.ino;
  const found = new Map<number, number>();
  for (const { pid, file } of descriptorFiles()) {
    const locks = parseLocks(textOf(file)).filter(
      (lock) => lock.kind === 'OFDLCK' && lock.device === device && lock.inode === inode,
    ).length;
    if (locks > 0) found.set(pid, (found.get(pid) ?? 0) + locks);
  }
  return [...found].map(([pid, locks]) => ({ pid, locks })).filter(({ locks }) => locks >= least);
}

function descriptorFiles(): { pid: number; file: string }[] {
  return namesIn('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) =>
      namesIn(`/proc/${pid}/fdinfo`).map((number) => ({
        pid: Number(pid),
        file: `/proc/${pid}/fdinfo/${number}`,
      })),
    );
}
