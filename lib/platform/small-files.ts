import { readFileSync, readlinkSync } from 'node:fs';
import { nativeOrNull } from '../native.ts';

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

const LOCK_READINGS = 3;

/**
 * The locks of all processes, as /proc/locks lists them, but all with the number 0; null where it can't be read. It is read three times
 * because between two pages the kernel skips locks while others come and go: with two processes that did nothing else, one that was held
 * all the time was missing in 29 of 10,765 readings (Linux 6.18).
 */
export function kernelLocks(): string | null {
  const lines = new Set<string>();
  for (let i = 0; i < LOCK_READINGS; i++) {
    const text = textOf('/proc/locks');
    if (text === null) return null;
    for (const line of text.split('\n')) lines.add(line.replace(/^\d+/, '0'));
  }
  return [...lines].join('\n');
}

function orNull(read: () => string): string | null {
  try {
    return read();
  } catch {
    return null;
  }
}
