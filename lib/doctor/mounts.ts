import { readOrEmpty } from './files.ts';

/** A line of /proc/self/mountinfo. */
export interface Mount {
  /** 'major:minor' of the file system, in decimal. */
  device: string;
  /** What of the file system is mounted: '/' = all of it. */
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
