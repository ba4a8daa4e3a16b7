import { native } from '../native.ts';
import { textOf } from './small-files.ts';

let name: string | undefined;

/**
 * This machine's name, as it was when it was first asked for: for everybody, so that names compare. Loading node:os would cost the
 * start of the command 0.3 ms.
 */
export function hostName(): string {
  if (name === undefined) {
    name = textOf('/proc/sys/kernel/hostname')?.trimEnd() ?? process.getBuiltinModule('node:os').hostname();
  }
  return name;
}

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
