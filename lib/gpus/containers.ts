import { existsSync } from 'node:fs';
import { simulatedMachine } from '../config/index.ts';
import { mountOf, parseMounts, readLink, readMounts, readSmallFile } from '../platform/index.ts';

/** Signs of the system around this process; tests have others. */
export interface SystemSigns {
  exists(path: string): boolean;
  /** '' where it can't be read. */
  read(path: string): string;
  /** '' where there is none. */
  readlink(path: string): string;
  env: NodeJS.ProcessEnv;
}

export const REAL_SIGNS: SystemSigns = {
  exists: existsSync,
  read: (path) => readSmallFile(path) ?? '',
  readlink: (path) => readLink(path) ?? '',
  env: process.env,
};

let wsl: boolean | undefined;

/**
 * Whether the GPUs are Windows' own, lent to WSL 2 (Windows Subsystem for Linux). The driver then tells neither who uses
 * them nor how much, and what Windows draws counts as memory in use. Simulated machines whose name begins with `wsl` are so.
 */
export function isWSL(): boolean {
  const machine = simulatedMachine();
  if (machine !== null) return machine.startsWith('wsl');
  wsl ??= isWSLKernel();
  return wsl;
}

/** The PID namespace that the kernel itself starts with; it is a constant of the kernel. */
const FIRST_PID_NAMESPACE = 'pid:[4026531836]';

/** Whether processes here have other numbers than the host knows them by, as in most containers, and in WSL 2. */
export function hasPidNamespace({ readlink } = REAL_SIGNS): boolean {
  return (readlink('/proc/self/ns/pid') || FIRST_PID_NAMESPACE) !== FIRST_PID_NAMESPACE;
}

/** Whether the kernel is that of WSL 2. One that its user has built may lack `microsoft` in its name. */
export function isWSLKernel({ exists, read } = REAL_SIGNS): boolean {
  return exists('/dev/dxg') || /microsoft/i.test(read('/proc/sys/kernel/osrelease'));
}

/** In which kind of container this process is, by the mark that its engine has left; null: in none that shows. */
export function whichContainer({ exists, read, env } = REAL_SIGNS): string | null {
  if (exists('/.dockerenv')) return 'Docker';
  if (exists('/run/.containerenv')) return 'Podman';
  if (env.APPTAINER_NAME || env.SINGULARITY_NAME) return 'Apptainer';
  if (env.container) return env.container;
  if (env.KUBERNETES_SERVICE_HOST) return 'Kubernetes';
  return (
    /\/(docker|lxc|libpod|kubepods|containerd)(?:\/|-[0-9a-f]{12}|\.slice|\.payload)/.exec(
      read('/proc/self/cgroup'),
    )?.[1] ?? null
  );
}

/** The mount point that a path lies on; '/' where nothing is known. @param table as /proc/self/mountinfo has them */
export function mountPointOf(path: string, table?: string): string {
  return mountOf(path, table === undefined ? readMounts() : parseMounts(table))?.point ?? '/';
}
