import { native } from '../native.ts';
import { textOf } from '../platform/index.ts';

let id: string | undefined;

/** The kernel's name for this boot of the machine; '' where it can't be read. */
export function bootId(): string {
  id ??= (textOf('/proc/sys/kernel/random/boot_id') ?? '').trim();
  return id;
}

/** Milliseconds since boot, sleep included: what the keeper stamps into records (CLOCK_BOOTTIME). */
export function bootMilliseconds(): number {
  return native().processBootMilliseconds();
}
