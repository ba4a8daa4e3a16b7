// Other tools on a simulated machine: their directories, and programs that lock as they do.
import type { ChildProcess } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { CONVENTIONS, type ConventionName } from '../../lib/config/index.ts';
import { type Machine, output, python, type Starting } from './machine.ts';

export const original = join(import.meta.dirname, '../conventions/fixtures/original.py');
/** Tools that have a lock per GPU; safe-gpu has one for all. */
export type Name = Exclude<ConventionName, 'safe-gpu'>;
export const NAMES: readonly Name[] = CONVENTIONS.filter((name) => name !== 'safe-gpu');
/** Where each tool has its locks: of the whole machine, or below the working directory. */
const DIRECTORIES: Readonly<Record<ConventionName, readonly [string, ...string[]]>> = {
  'safe-gpu': ['/tmp/safe_gpu'],
  gpu_lock: ['/var/tmp/gpu_lock', '/var/tmp/gpu_locks'],
  'gpu-scheduler': ['/tmp/gpu_locks'],
  'pid-files': ['.gpu_locks'],
};
/** The file of a GPU, in each of its directories. */
const FILES: Readonly<Record<Name, (gpu: number) => string>> = {
  gpu_lock: (gpu) => `gpu_${gpu}.json`,
  'gpu-scheduler': (gpu) => `gpu_${gpu}.lock`,
  'pid-files': (gpu) => `gpu_${gpu}.lock`,
};
export const SHARED_DIRECTORIES = CONVENTIONS.flatMap((name) =>
  DIRECTORIES[name].filter((path) => path.startsWith('/')).map((path) => ({ name, path })),
);

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
  return makeDirectory(placeOf(machine, resolve(machine.directory, DIRECTORIES[name][0])));
}

export function makeDirectory(path: string): string {
  mkdirSync(path, { recursive: true });
  chmodSync(path, 0o777);
  return path;
}

export function fileOf(machine: Machine, name: Name, gpu = 0): string {
  return join(directoryOf(machine, name), FILES[name](gpu));
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
  return machine.start([python, '-IS', original, ...args], starting);
}

/** Runs such a program, and returns what it prints. */
export function tryAs(machine: Machine, name: Name, gpu = 0, starting: Starting = {}): Promise<string> {
  const child = startOriginal(machine, ['hold', name, directoryOf(machine, name), String(gpu)], starting);
  child.stdin?.end();
  return output(child, /locked|refused/);
}
