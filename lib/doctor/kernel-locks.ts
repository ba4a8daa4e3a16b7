import { textOf } from './files.ts';

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
  return parseLocks(textOf('/proc/locks'));
}

export function parseLocks(text: string): KernelLock[] {
  const line =
    /^\d+: (FLOCK|OFDLCK|POSIX) +\w+ +(READ|WRITE) +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) (\d+) /gm;
  return [...text.matchAll(line)].map(([, kind, mode, pid, major, minor, inode, start]) => ({
    kind: kind as KernelLock['kind'],
    exclusive: mode === 'WRITE',
    pid: Number(pid) > 0 ? Number(pid) : null,
    device: `${Number.parseInt(major as string, 16)}:${Number.parseInt(minor as string, 16)}`,
    inode: Number(inode),
    start: Number(start),
  }));
}
