// Files that may not be there, or may not be looked at: to whoever examines a machine that is no error.

import { lstatSync, readdirSync, type Stats } from 'node:fs';
import { readSmallFile } from '../platform/index.ts';

/** Of the path itself, should it be a symbolic link. */
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
