import { type FileStatus, kernelLocks } from '../platform/index.ts';

/**
 * Who holds a flock, by `inode`, as far as this PID namespace knows. Looking at /proc/locks takes nothing, where an attempt to
 * take the lock would for a moment stand in the way of its owners.
 */
export function flockHolders(): { file: string; pid: number }[] {
  const text = kernelLocks() ?? '';
  // 3: FLOCK  ADVISORY  WRITE 4242 08:01:131088 0 EOF; a line with `->` is somebody who waits.
  return [...text.matchAll(/^\d+: FLOCK +\S+ +\S+ +(\d+) ([0-9a-f]+:[0-9a-f]+:\d+) /gm)].map(
    ([, pid, file]) => ({ pid: Number(pid), file: file as string }),
  );
}

/** A file as /proc/locks names it. */
export function nameInLocks({ device, inode }: Pick<FileStatus, 'device' | 'inode'>): string {
  const major = Math.floor(device / 256) % 4096;
  const minor = (device % 256) + 256 * (Math.floor(device / 2 ** 20) % 2 ** 12);
  const hex = (number: number) => number.toString(16).padStart(2, '0');
  return `${hex(major)}:${hex(minor)}:${inode}`;
}
