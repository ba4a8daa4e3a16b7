import { hasPidNamespace, isWSLKernel, REAL_SIGNS, whichContainer } from '../gpus/index.ts';
import { mountOf, parseMounts } from '../platform/index.ts';
import type { Report } from './finding.ts';
import { whyPrivate } from './system.ts';

/** Where this process runs, and what it can't see from there. */
export function checkEnvironment(report: Report, system = REAL_SIGNS): void {
  const mounts = parseMounts(system.read('/proc/self/mountinfo'));
  let remarkable = false;
  const add: Report['add'] = (...args) => {
    remarkable = true;
    report.add(...args);
  };
  const container = whichContainer(system);
  if (container !== null) {
    add(
      'container',
      `This is a container (${container}). Its claims see those of the host and of other containers only in a shared lock directory.`,
      "Mount the host's directory: `docker run -v /run/lock/gpu-owner:/run/lock/gpu-owner …`.",
    );
  }
  if (hasPidNamespace(system)) {
    add(
      'pid-namespace',
      `This PID namespace isn't the machine's: processes outside of it are invisible here, and PIDs that the driver reports may be those of other processes. Leases are not affected.`,
      container === null
        ? null
        : 'To see who uses a GPU, run this on the host, or start the container with `docker run --pid=host`.',
    );
  }
  for (const path of ['/tmp', '/var/tmp']) {
    const mount = mountOf(path, mounts);
    const why = mount === null || mount.point !== path ? null : whyPrivate(mount);
    if (why === null) continue;
    add(
      'private-tmp',
      `${path} is ${why}: claims don't see the locks that other tools have there, and those tools don't see ours.`,
      'Give the service `PrivateTmp=no`, and create a lock directory elsewhere: `install -d -m 1777 /run/lock/gpu-owner`.',
    );
  }
  if (isWSLKernel(system)) {
    add(
      'wsl',
      'This is WSL: its driver belongs to Windows, and lists no processes. Programs in Windows are only visible by their memory use.',
    );
  }
  if (!remarkable) report.add('surroundings', 'No container, no private /tmp.');
}
