import { readdirSync } from 'node:fs';
import { simulatedMachine } from '../config/index.ts';
import { ifPossible } from '../errors.ts';
import {
  describeProcess,
  type ProcessDescription,
  readLink,
  readSmallFile,
  threadsOf,
} from '../platform/index.ts';
import { hasPidNamespace } from './containers.ts';
import type { GPU } from './types.ts';

/**
 * Describes a process that the driver lists. In a container, some drivers list processes by their number on the host, where it
 * means another one: a process that has nothing of the driver open can't be it, and counts as gone.
 * @param proc another mount of procfs, for tests
 */
export function describeListedProcess(pid: number, proc = '/proc'): ProcessDescription {
  const who = describeProcess(pid, proc);
  if (who.alive !== 'alive' || who.name === null) return who;
  const uses = usesDriver(pid, proc);
  if (uses === false) return { name: null, user: null, uid: null, alive: 'gone' };
  // Another user's process may be a different one of this number: no name is better than a wrong one.
  if (uses === null && hasPidNamespace()) return { name: null, user: null, uid: null, alive: 'alive' };
  return who;
}

/** Devices of NVIDIA's drivers: on PCs, under WSL, on Tegra. */
const DEVICES = /^\/dev\/(nvidia|dxg$|nvhost|nvmap|nvgpu|dri\/)/;

/**
 * null: this process may not know. A process can close the descriptors of its main thread, or end that thread, and compute on by
 * another one; but no thread computes without the driver's mappings, and all threads have the same.
 */
function usesDriver(pid: number, proc: string): boolean | null {
  const machine = simulatedMachine();
  const isOpen = (path: string) =>
    machine === null ? DEVICES.test(path) : path.endsWith(`/${machine}/slots`);
  const opened = hasOpened(`${proc}/${pid}/fd`, isOpen);
  if (opened) return true;
  const mapped = mappedPaths(pid, proc);
  const isMapped = (path: string) =>
    machine === null ? DEVICES.test(path) : path.endsWith(`/${machine}/state`);
  if (mapped?.some(isMapped)) return true;
  return opened === null && mapped === null ? null : false;
}

/** Looks no further than the first one: there may be a million. null: it can't be read */
function hasOpened(directory: string, isWanted: (path: string) => boolean): boolean | null {
  return ifPossible(
    () => readdirSync(directory).some((descriptor) => isWanted(readLink(`${directory}/${descriptor}`) ?? '')),
    null,
  );
}

/** The files that a process has mapped; null: they can't be read. The mappings of a thread that has ended are empty. */
function mappedPaths(pid: number, proc: string): string[] | null {
  for (const thread of threadsOf(pid, proc)) {
    const text = readSmallFile(`${proc}/${thread}/maps`);
    if (text) return [...text.matchAll(/ (\/.*)$/gm)].map(([, path = '']) => path);
  }
  return null;
}

/** The processes that compute on a GPU, as the driver lists them. */
export function computePids({ processes }: GPU): number[] {
  return (processes ?? []).filter(({ type }) => type === 'compute').map(({ pid }) => pid);
}

/** The memory that a process uses on a GPU; null: unknown. One that computes and draws is listed twice, with the same memory. */
export function memoryOf({ processes }: GPU, pid: number): number | null {
  const known = (processes ?? []).filter((process) => process.pid === pid && process.usedBytes !== null);
  return known.length === 0 ? null : Math.max(...known.map((process) => process.usedBytes ?? 0));
}

/** `nvidia-cuda-mps-server`, as far as the kernel keeps names. The control daemon has the same, but is on no GPU. */
const NAME = 'nvidia-cuda-mps';

/** The most that a server uses of a GPU for itself (25 to 30 MiB were seen); before Volta, its clients' memory counts as its own. */
const OWN_MEMORY = 100 * 1024 ** 2;

/** Whether it is a server of the Multi-Process Service, through which several processes compute on a GPU. */
export function isMPSServer({ name, alive }: ProcessDescription): boolean {
  return name === NAME && alive === 'alive';
}

/** Whether it is a server of MPS without clients, as far as its memory tells. */
export function isIdleMPSServer(who: ProcessDescription, usedBytes: number | null): boolean {
  return isMPSServer(who) && (usedBytes ?? 0) <= OWN_MEMORY;
}
