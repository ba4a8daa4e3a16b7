import { readdirSync } from 'node:fs';
import { simulatedMachine } from '../config/index.ts';
import { describeProcess, type ProcessDescription, targetOf } from '../platform/index.ts';
import { hasPidNamespace } from './containers.ts';

/**
 * Who a process is that the driver lists. In a container, some drivers list processes by their number on the host, where it
 * means another one: a process that has nothing of the driver open can't be it, and counts as gone.
 * @param proc another mount of procfs, for tests
 */
export function describeListedProcess(pid: number, proc = '/proc'): ProcessDescription {
  const who = describeProcess(pid, proc);
  if (who.alive !== 'alive' || who.name === null) return who;
  const uses = usesDriver(pid, proc);
  if (uses === false) return { name: null, user: null, uid: null, alive: 'gone' };
  // Another user's process: nobody can tell whether it is the one, so better no name than a wrong one.
  if (uses === null && hasPidNamespace()) return { name: null, user: null, uid: null, alive: 'alive' };
  return who;
}

/** Devices of NVIDIA's drivers: on PCs, under WSL, on Tegra. */
const DEVICES = /^\/dev\/(nvidia|dxg$|nvhost|nvmap|nvgpu|dri\/)/;

/** null: this process may not know. */
function usesDriver(pid: number, proc: string): boolean | null {
  const machine = simulatedMachine();
  const opens = (path: string) =>
    machine === null ? DEVICES.test(path) : path.endsWith(`/${machine}/slots`);
  const directory = `${proc}/${pid}/fd`;
  try {
    return readdirSync(directory).some((descriptor) => opens(targetOf(`${directory}/${descriptor}`) ?? ''));
  } catch {
    return null;
  }
}
