// Who has a lock on a file, where what is written there doesn't say. Takes nothing.
import { fstatSync, readdirSync, statSync } from 'node:fs';
import { now } from './clock.ts';
import { describeProcess } from './gpus/processes.ts';
import { EXCLUSIVE, native, OFD } from './native.ts';
import { textOf } from './small-files.ts';

/** A process that has a lock, as far as the kernel shows it to this user: one's own, to root all, and whose lock is a POSIX one. */
export interface LockOwner {
  pid: number;
  uid: number | null;
  user: string | null;
  name: string | null;
  /** Whether the open file has another lock, of a tenure, as claims have besides that of the lease or of a decision. */
  isClaim: boolean;
}

/** How long to look through all open files before it is given up, in ms. */
const PATIENCE = 500;

/** Who has a lock that reaches this byte. */
export function ownersOf(descriptor: number, byte: number, patience = PATIENCE): LockOwner[] {
  const pid = native().lockHolder(descriptor, OFD, EXCLUSIVE, byte, 1);
  if (pid > 0) return [ownerOf(pid, false)]; // a POSIX lock: the kernel tells everybody
  const { dev, ino } = fstatSync(descriptor);
  const end = now() + patience;
  const owners = new Map<number, LockOwner>();
  for (const process of namesIn('/proc')) {
    if (now() > end) break;
    if (!/^\d+$/.test(process)) continue;
    for (const number of namesIn(`/proc/${process}/fdinfo`)) {
      const locks = locksIn(textOf(`/proc/${process}/fdinfo/${number}`) ?? '', ino);
      if (!locks.some(({ start, last }) => start <= byte && byte <= last)) continue;
      const file = statSync(`/proc/${process}/fd/${number}`, { throwIfNoEntry: false });
      if (file?.dev !== dev || file.ino !== ino) continue;
      const isClaim = locks.some(({ start, last }) => start === last && start > byte);
      owners.set(Number(process), ownerOf(Number(process), isClaim));
    }
  }
  return [...owners.values()];
}

/** "python3 (pid 4711, mallory)" */
export function describeOwner({ pid, user, name }: LockOwner): string {
  return `${name ?? 'a process'} (pid ${pid}, ${user ?? '?'})`;
}

function ownerOf(pid: number, isClaim: boolean): LockOwner {
  const { uid, user, name } = describeProcess(pid);
  return { pid, uid, user, name, isClaim };
}

/** The locks on that inode in a file of /proc/PID/fdinfo. A flock stands in no claim's way. */
function locksIn(text: string, inode: number): { start: number; last: number }[] {
  const line = /^lock:\t\d+: (?:OFDLCK|POSIX) +\w+ +\w+ +-?\d+ [0-9a-f]+:[0-9a-f]+:(\d+) (\d+) (\d+|EOF)$/gm;
  return [...text.matchAll(line)]
    .filter(([, found]) => Number(found) === inode)
    .map(([, , start, last]) => ({
      start: Number(start),
      last: last === 'EOF' ? Number.POSITIVE_INFINITY : Number(last),
    }));
}

function namesIn(directory: string): string[] {
  try {
    return readdirSync(directory);
  } catch {
    return []; // of another user, or ended meanwhile
  }
}
