import { readFileSync, readlinkSync } from 'node:fs';
import { nativeOrNull } from './native.ts';

// By the addon where there is one: its first call takes microseconds (native/bindings/system.cc).

/** What stands in a small file of the system; null where it can't be read. */
export function textOf(path: string): string | null {
  const addon = nativeOrNull();
  return addon === null ? orNull(() => readFileSync(path, 'utf8')) : addon.fileText(path);
}

/** Where a link leads; null where it is none, or can't be read. */
export function targetOf(path: string): string | null {
  const addon = nativeOrNull();
  return addon === null ? orNull(() => readlinkSync(path)) : addon.fileLink(path);
}

function orNull(read: () => string): string | null {
  try {
    return read();
  } catch {
    return null;
  }
}
