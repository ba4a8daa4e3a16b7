// Other tools on a simulated machine: their directories, and programs that lock as they do.
import type { ChildProcess } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { type Machine, output, python, type Starting } from './machine.ts';

export const original = join(import.meta.dirname, '../conventions/fixtures/original.py');
export type Name = 'gpu_lock' | 'pid-files' | 'gpu-scheduler';

export const SAFE_GPU = 'gpu-lock-magic-RaNdOM-This_Name-NEED_BE-THE_SAME-Across_Users';

/** Where a path of other tools is on a simulated machine. */
export function placeOf(machine: Machine, path: string): string {
  // As the simulator makes it, for all users.
  const own = join(machine.directory, 'machines', machine.name);
  if (!existsSync(own)) chmodSync(makeDirectory(own), 0o1777);
  return join(machine.directory, 'machines', machine.name, 'root', path);
}

/** The directory of a convention on this machine, made as the tool would. */
export function directoryOf(machine: Machine, name: Name): string {
  const path = {
    gpu_lock: '/var/tmp/gpu_lock',
    'gpu-scheduler': '/tmp/gpu_locks',
    'pid-files': join(machine.directory, '.gpu_locks'),
  }[name];
  return makeDirectory(placeOf(machine, path));
}

export function makeDirectory(path: string): string {
  mkdirSync(path, { recursive: true });
  chmodSync(path, 0o777);
  return path;
}

export function fileOf(machine: Machine, name: Name, gpu = 0): string {
  return join(directoryOf(machine, name), name === 'gpu_lock' ? `gpu_${gpu}.json` : `gpu_${gpu}.lock`);
}

/** Where PID files are used, the working directory matters. */
export function here(machine: Machine): Starting {
  return { cwd: machine.directory };
}

/** A program that has the lock of a GPU, as the tool of this name takes it, until its input ends. */
export async function holdAs(
  machine: Machine,
  name: Name,
  { gpu = 0, ...starting }: Starting & { gpu?: number } = {},
): Promise<ChildProcess> {
  const child = startOriginal(machine, ['hold', name, directoryOf(machine, name), String(gpu)], starting);
  await output(child, /locked/);
  return child;
}

export function startOriginal(machine: Machine, args: string[], starting: Starting = {}): ChildProcess {
  return machine.start([python, original, ...args], starting);
}

/** Runs such a program, and returns what it prints. */
export function tryAs(machine: Machine, name: Name, gpu = 0, starting: Starting = {}): Promise<string> {
  const child = startOriginal(machine, ['hold', name, directoryOf(machine, name), String(gpu)], starting);
  child.stdin?.end();
  return output(child, /locked|refused/);
}
