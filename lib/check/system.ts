import { lstatSync, readdirSync, type Stats } from 'node:fs';
import { ifPossible } from '../errors.ts';
import { type Mount, readSmallFile } from '../platform/index.ts';

// Files that may not be there, or may not be looked at: to an examination of a machine that is no error.

/** The status of the path itself, even of a symbolic link. */
export function statOf(path: string): Stats | null {
  return ifPossible(() => lstatSync(path, { throwIfNoEntry: false }) ?? null, null);
}

export function namesIn(directory: string): string[] {
  return ifPossible(() => readdirSync(directory).sort(), []);
}

/** Empty where it can't be read. */
export function readOrEmpty(path: string): string {
  return readSmallFile(path) ?? '';
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
