// Who has a lock on a file, where what is written there doesn't say. Takes nothing.
import { fstatSync, readdirSync, statSync } from 'node:fs';
import { EXCLUSIVE, native, OFD } from '../native.ts';
import { now } from './clock.ts';
import { describeProcess } from './processes.ts';
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

/** An open file with locks. */
interface OpenFile {
  pid: number;
  /** Of its descriptor. */
  number: string;
  locks: readonly { inode: number; start: number; last: number }[];
}

/** The open files of all processes that have locks, as far as this user may look. @param patience in ms */
export function lockedFiles(patience = PATIENCE): OpenFile[] {
  const end = now() + patience;
  const found: OpenFile[] = [];
  for (const process of namesIn('/proc')) {
    if (now() > end) break;
    if (!/^\d+$/.test(process)) continue;
    for (const number of namesIn(`/proc/${process}/fdinfo`)) {
      const locks = locksIn(textOf(`/proc/${process}/fdinfo/${number}`) ?? '');
      if (locks.length > 0) found.push({ pid: Number(process), number, locks });
    }
  }
  return found;
}

/** Who has a lock that reaches this byte. @param files where to look, for those who ask more than once */
export function ownersOf(descriptor: number, byte: number, files?: readonly OpenFile[]): LockOwner[] {
  const pid = native().lockHolder(descriptor, OFD, EXCLUSIVE, byte, 1);
  if (pid > 0) return [ownerOf(pid, false)]; // a POSIX lock: the kernel tells everybody
  const { dev, ino } = fstatSync(descriptor);
  const owners = new Map<number, LockOwner>();
  for (const { pid, number, locks } of files ?? lockedFiles()) {
    const reaches = ({ inode, start, last }: OpenFile['locks'][number]) =>
      inode === ino && start <= byte && byte <= last;
    if (!locks.some(reaches)) continue;
    const file = statSync(`/proc/${pid}/fd/${number}`, { throwIfNoEntry: false });
    if (file?.dev !== dev || file.ino !== ino) continue;
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

function ownerOf(pid: number, isClaim: boolean): LockOwner {
  const { uid, user, name } = describeProcess(pid);
  return { pid, uid, user, name, isClaim };
}

/** The locks in a file of /proc/PID/fdinfo. A flock stands in no claim's way. */
function locksIn(text: string): { inode: number; start: number; last: number }[] {
  if (!text.includes('lock:')) return [];
  const line = /^lock:\t\d+: (?:OFDLCK|POSIX) +\w+ +\w+ +-?\d+ [0-9a-f]+:[0-9a-f]+:(\d+) (\d+) (\d+|EOF)$/gm;
  return [...text.matchAll(line)].map(([, inode, start, last]) => ({
    inode: Number(inode),
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
