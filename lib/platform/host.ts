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
