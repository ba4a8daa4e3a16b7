import { closeSync, constants, openSync } from 'node:fs';
import { EXCLUSIVE, errno, native, OFD } from '../native.ts';
import { systemError } from '../platform/index.ts';
import { readOrEmpty } from './files.ts';
import type { Report } from './finding.ts';

/** As in Linux; Node.js has no name for it. The file never gets a name, so that nothing can be left behind. */
const O_TMPFILE = 0o20000000 | constants.O_DIRECTORY;

/** Whether locks exclude there, tried on a file without a name: nobody is disturbed. */
export function reportLocking(report: Report, path: string): void {
  let file: number;
  try {
    file = openSync(path, O_TMPFILE | constants.O_RDWR, 0o600);
  } catch (error) {
    const { errno: number, code } = error as NodeJS.ErrnoException;
    if (code === 'ENOSPC') return; // that it is full has been said
    const why =
      code === 'EOPNOTSUPP' || code === 'EISDIR'
        ? 'has no files without a name'
        : systemError(-(number ?? 0));
    report.add(
      'locks-untested',
      `Whether locks work in ${path} wasn't tried, since that would leave a trace (${why}).`,
    );
    return;
  }
  try {
    const problem = tryLocks(file);
    if (problem === null) {
      report.add('locks', `Locks work there (tried on a file without a name)${protectedRegular()}.`);
    } else {
      report.add(
        'locks-broken',
        `Locks don't work in ${path}: ${problem}.`,
        'Have the lock directory on a local file system (ext4, xfs, tmpfs): `lockDirectory` in /etc/gpu-owner/config.yaml.',
      );
    }
  } finally {
    closeSync(file);
  }
}

/** A second opening of the file must find the lock of the first in its way; null: it does. */
function tryLocks(file: number): string | null {
  const taken = native().lockTry(file, OFD, EXCLUSIVE, 0, 1);
  if (taken !== 0) return `the kernel refuses them (${systemError(taken)})`;
  let second: number;
  try {
    second = openSync(`/proc/self/fd/${file}`, constants.O_RDWR);
  } catch {
    return null; // the lock was granted; /proc is missing
  }
  try {
    const again = native().lockTry(second, OFD, EXCLUSIVE, 0, 1);
    if (again === 0) return 'the same lock is granted twice';
    if (again !== errno.EAGAIN) return systemError(again);
    return native().lockProbe(second, OFD, EXCLUSIVE, 0, 1) === 0 ? null : 'who looks sees no lock';
  } finally {
    closeSync(second);
  }
}

/** What makes others' tools fail on each other's lock files in /tmp, and people search. */
function protectedRegular(): string {
  const level = readOrEmpty('/proc/sys/fs/protected_regular').trim();
  return level === '' || level === '0' ? '' : `; fs.protected_regular is ${level}, which they are made for`;
}
