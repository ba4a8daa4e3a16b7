import { lstatSync, readdirSync, type Stats } from 'node:fs';
import { readSmallFile } from '../platform/index.ts';

// Files that may not be there, or may not be looked at: to whoever examines a machine that is no error.

/** The status of the path itself, even of a symbolic link. */
export function statOf(path: string): Stats | null {
  try {
    return lstatSync(path, { throwIfNoEntry: false }) ?? null;
  } catch {
    return null;
  }
}

export function namesIn(directory: string): string[] {
  try {
    return readdirSync(directory).sort();
  } catch {
    return [];
  }
}

/** Empty where it can't be read. */
export function readOrEmpty(path: string): string {
  return readSmallFile(path) ?? '';
}

/** Four digits, as chmod has it. */
export function octal({ mode }: Stats): string {
  return (mode & 0o7777).toString(8).padStart(4, '0');
}

/** A line of /proc/self/mountinfo. */
export interface Mount {
  /** 'major:minor' of the file system, in decimal. */
  device: string;
  /** The part of the file system that is mounted: '/' = all of it. */
  root: string;
  point: string;
  type: string;
  /** Options of the mount and of the file system. */
  options: readonly string[];
}

/** The mounts that this process sees, in the order in which they were made; none where that can't be read. */
export function readMounts(): Mount[] {
  return parseMounts(readOrEmpty('/proc/self/mountinfo'));
}

export function parseMounts(text: string): Mount[] {
  return text.split('\n').flatMap((line) => {
    const [before = '', after = ''] = line.split(' - ');
    const [, , device, root, point, options] = before.split(' ');
    const [type, , superOptions] = after.split(' ');
    if (!device || !root || !point || !type) return [];
    return [
      {
        device,
        root: plain(root),
        point: plain(point),
        type,
        options: [...(options ?? '').split(','), ...(superOptions ?? '').split(',')],
      },
    ];
  });
}

/** Spaces and the like are written as octal numbers. */
function plain(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
}

/** The mount in which a path lies, whose symbolic links are resolved; the last one made hides those before. */
export function mountOf(path: string, mounts: readonly Mount[]): Mount | null {
  let found: Mount | null = null;
  for (const mount of mounts) {
    const inside = mount.point === '/' || path === mount.point || path.startsWith(`${mount.point}/`);
    if (inside && mount.point.length >= (found?.point.length ?? 0)) found = mount;
  }
  return found;
}

/**
 * Why what is mounted there isn't what others see at the same path; null: nothing tells that it isn't. systemd's PrivateTmp
 * and PAM's private directories mount a directory of their own over /tmp and /var/tmp.
 */
export function whyPrivate({ root }: Mount): string | null {
  if (root.includes('/systemd-private-')) return 'private to this service (PrivateTmp of systemd)';
  if (/[/.-]inst(ance)?s?\//.test(root)) return `private to this session (it is ${root} of its file system)`;
  return null;
}
