import { existsSync } from 'node:fs';
import { simulatedMachine } from '../config/index.ts';
import { mountOf, parseMounts, readLink, readMounts, readSmallFile } from '../platform/index.ts';

let wsl: boolean | undefined;

/**
 * Whether the GPUs are Windows' own, lent to WSL 2 (Windows Subsystem for Linux). The driver then tells neither who uses
 * them nor how much, and what Windows draws counts as memory in use. Simulated machines whose name begins with `wsl` are so.
 */
export function isWSL(): boolean {
  const machine = simulatedMachine();
  if (machine !== null) return machine.startsWith('wsl');
  wsl ??= isWSLKernel('/dev/dxg', '/proc/sys/kernel/osrelease');
  return wsl;
}

/** @param device Windows' GPUs, as a device @param release the kernel's name; one built by its user may lack `microsoft` */
export function isWSLKernel(device: string, release: string): boolean {
  return existsSync(device) || /microsoft/i.test(readSmallFile(release) ?? '');
}

/** The PID namespace that the kernel itself starts with; it is a constant of the kernel. */
const FIRST_PID_NAMESPACE = 'pid:[4026531836]';

/** Whether processes here have other numbers than the host knows them by, as in most containers, and in WSL 2. */
export function hasPidNamespace(): boolean {
  return (readLink('/proc/self/ns/pid') ?? FIRST_PID_NAMESPACE) !== FIRST_PID_NAMESPACE;
}

/** Signs that tell whether this is a container; tests have others. */
export interface ContainerSigns {
  exists(path: string): boolean;
  /** '' where it can't be read. */
  read(path: string): string;
  env: NodeJS.ProcessEnv;
}

const REAL_SIGNS: ContainerSigns = {
  exists: existsSync,
  read: (path) => readSmallFile(path) ?? '',
  env: process.env,
};

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
