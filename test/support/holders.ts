// Commands of several users that hold GPUs until their input is closed.
import type { ChildProcess } from 'node:child_process';
import { finished, type Machine, NOBODY, output, type Starting } from './machine.ts';

export const RUN = ['run', '--placeholder', 'none'];
export const UNTIL_CLOSED = ['--', 'sh', '-c', 'echo started; exec cat'];

export const alice = { uid: NOBODY, umask: '077' };
export const bob = { uid: NOBODY - 1, umask: '077' };

/** Starts a command, and waits until it has its GPUs. @param options of `run` */
export async function startHolder(
  machine: Machine,
  options: readonly string[] = [],
  starting: Starting = {},
): Promise<ChildProcess> {
  const child = machine.startCommand([...RUN, ...options, ...UNTIL_CLOSED], starting);
  await output(child, /^started/m);
  return child;
}

/** Closes the input of a command, and waits for its end. */
export async function endHolder(child: ChildProcess): Promise<void> {
  const ended = finished(child, 'exit');
  child.stdin?.end();
  await ended;
}
