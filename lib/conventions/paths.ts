import { dirname, resolve } from 'node:path';
import { simulatedMachine, simulationDirectory } from '../config/index.ts';
import { ifPossible } from '../errors.ts';
import { cudaOrder, type GPU } from '../gpus/index.ts';
import { errno } from '../native.ts';
import { Directory, isRoot, schema, userName, warnOnce } from '../platform/index.ts';

/**
 * The prefix of every path of other tools: '' on a real machine. On a simulated one it is a directory of that
 * machine, so that simulated claims and the real ones of other tools have nothing to do with each other.
 */
export function interopRoot(env: NodeJS.ProcessEnv = process.env): string {
  const named = env.GPU_OWNER_CONVENTIONS_ROOT;
  if (schema.isAbsolutePath(named)) return resolve(named);
  const machine = simulatedMachine(env);
  return machine === null ? '' : `${simulationDirectory(machine, env)}/root`;
}

/**
 * A path of other tools on this machine, real or simulated. @param path absolute and normalized
 * @param root for those who ask for several: finding it out takes microseconds
 */
export function machinePath(path: string, root = interopRoot()): string {
  // Asked for by each step of a claim, so no `join`: the first calls of a function are slow.
  return root + path;
}

/** null: it has been removed. */
export function workingDirectory(): string | null {
  return ifPossible(() => process.cwd(), null);
}

/** Creates another tool's directory if it is missing, with its mode despite the umask; null on failure. */
export function ensureDirectory(path: string, mode: number): Directory | null {
  const made = Directory.open(path, mode);
  if (typeof made !== 'number') return made;
  // Directories below another root aren't there from the start as /tmp is.
  const parent = dirname(path);
  if (made !== -errno.ENOENT || parent === path || ensureDirectory(parent, 0o1777) === null) return null;
  const again = Directory.open(path, mode);
  return typeof again === 'number' ? null : again;
}

/**
 * The owner of a directory of one user, if that is neither this user's nor root's: other users don't decide here what is
 * locked.
 */
function foreignOwner({ status: { uid } }: Directory): string | null {
  return uid === process.geteuid?.() || isRoot(uid) ? null : userName(uid);
}

/** Opens a directory of one user, in a place that others may change; null: there is none that counts. */
export function openOwn(path: string): Directory | null {
  const directory = Directory.at(path);
  const owner = directory === null ? null : foreignOwner(directory);
  if (owner === null) return directory;
  warnOnce(`${path} belongs to ${owner}: its locks are ignored, and this claim isn't shown there.`);
  return null;
}

let known: { key: string; ordinals: Map<string, number> } | undefined;

/**
 * How CUDA counts this machine's GPUs without CUDA_VISIBLE_DEVICES, by UUID: the numbers of programs that use PyTorch. Where
 * CUDA can't tell, nothing is known, as a guess could name another user's GPU.
 */
export function cudaOrdinals(gpus: readonly GPU[]): Map<string, number> {
  const key = gpus.map(({ uuid, name }) => `${uuid} ${name}`).join();
  if (known?.key !== key) known = { key, ordinals: ask(gpus) };
  return known.ordinals;
}

function ask(gpus: readonly GPU[]): Map<string, number> {
  const order = cudaOrder(gpus);
  if ('uuids' in order) return new Map(order.uuids.map((uuid, ordinal) => [uuid, ordinal]));
  warnOnce(`lock files of programs that count GPUs as PyTorch does are ignored: ${order.why}`);
  return new Map();
}
