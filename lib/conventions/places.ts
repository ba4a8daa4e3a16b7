import { dirname, isAbsolute, resolve } from 'node:path';
import { isDirectory, statusOf } from '../file-status.ts';
import { native } from '../native.ts';
import { simulatedMachine, simulationDirectory } from '../simulation.ts';

/**
 * What stands before every path of other tools: '' on a real machine. On a simulated one it is a directory of that
 * machine, so that simulated claims and the real ones of other tools have nothing to do with each other.
 */
export function rootOfOthers(env: NodeJS.ProcessEnv = process.env): string {
  const named = env.GPU_OWNER_CONVENTIONS_ROOT;
  if (named && isAbsolute(named)) return resolve(named);
  const machine = simulatedMachine(env);
  return machine === null ? '' : `${simulationDirectory(machine, env)}/root`;
}

/**
 * A path of other tools on this machine, real or simulated. @param path absolute and normalized
 * @param root for those who ask for several: finding it out takes microseconds
 */
export function placeOf(path: string, root = rootOfOthers()): string {
  // Asked for by each step of a claim, so no `join`: the first calls of a function are slow.
  return root + path;
}

/** The user's home, or null where there is none. */
export function home(): string | null {
  try {
    // As homedir() does, without loading node:os for it.
    const directory = process.env.HOME || process.getBuiltinModule('node:os').homedir();
    return isAbsolute(directory) ? directory : null;
  } catch {
    return null; // a uid without an account
  }
}

/** null: it has been removed. */
export function workingDirectory(): string | null {
  try {
    return process.cwd();
  } catch {
    return null;
  }
}

/** Makes a directory of others where it is missing, with its mode whatever the umask. Whether it is there afterwards. */
export function ensureDirectory(path: string, mode: number): boolean {
  if (isDirectory(path)) return true;
  // What lies below another root isn't there from the start as /tmp is.
  const parent = dirname(path);
  if (parent !== path && statusOf(parent) === null && !ensureDirectory(parent, 0o1777)) return false;
  native().fileEnsureDirectory(path, mode);
  return isDirectory(path);
}
