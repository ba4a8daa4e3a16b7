import { readFileSync } from 'node:fs';
import { native } from '../native.ts';

let id: string | undefined;

/** The kernel's name for this boot of the machine; '' where it can't be read. */
export function bootId(): string {
  id ??= read('/proc/sys/kernel/random/boot_id').trim();
  return id;
}

/** Milliseconds since boot, sleep included: what the keeper stamps into records (CLOCK_BOOTTIME). */
export function bootMilliseconds(): number {
  return native().processBootMilliseconds();
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
