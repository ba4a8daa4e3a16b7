import { native } from '../native.ts';
import { type KernelLock, parseLocks, processIds, readLocks } from '../platform/index.ts';
import { namesIn, readOrEmpty, statOf } from './files.ts';
import { mountOf, readMounts } from './mounts.ts';

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
  if (!readLocks()?.some(matches)) return [];
  const startsIn = (file: string) =>
    parseLocks(readOrEmpty(file))
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
    const locks = parseLocks(readOrEmpty(file)).filter(
      (lock) => lock.kind === 'OFDLCK' && lock.device === device && lock.inode === inode,
    ).length;
    if (locks > 0) found.set(pid, (found.get(pid) ?? 0) + locks);
  }
  return [...found].map(([pid, locks]) => ({ pid, locks })).filter(({ locks }) => locks >= least);
}

function descriptorFiles(): { pid: number; file: string }[] {
  return processIds().flatMap((pid) =>
    namesIn(`/proc/${pid}/fdinfo`).map((number) => ({ pid, file: `/proc/${pid}/fdinfo/${number}` })),
  );
}
