import { existsSync, readlinkSync } from 'node:fs';
import { type ContainerSigns, whichContainer } from '../gpus/index.ts';
import type { Report } from './finding.ts';
import { mountOf, parseMounts, readOrEmpty, whyPrivate } from './system.ts';

/** The parts of the system that are checked here; tests have their own. */
export interface System extends ContainerSigns {
  /** '' where there is none. */
  readlink(path: string): string;
  uid: number;
}

const REAL_SYSTEM: System = {
  exists: existsSync,
  read: readOrEmpty,
  readlink: (path) => {
    try {
      return readlinkSync(path);
    } catch {
      return '';
    }
  },
  env: process.env,
  uid: process.geteuid?.() ?? 0,
};

/** The kernel's fixed number of the PID namespace in which the machine started. */
const FIRST_PID_NAMESPACE = 'pid:[4026531836]';

/** Where this process runs, and what it can't see from there. */
export function checkEnvironment(report: Report, system = REAL_SYSTEM): void {
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
      `This is a container (${container}). Claims meet those of the host and of other containers only in a lock directory that all share.`,
      "Mount the host's: `docker run -v /run/lock/gpu-owner:/run/lock/gpu-owner …`.",
    );
  }
  if (isOtherPidNamespace(system)) {
    add(
      'pid-namespace',
      `This PID namespace isn't the machine's: processes outside of it are not visible, and the driver either leaves them out or gives numbers that mean others here. Leases are not affected.`,
      container === null
        ? null
        : 'To see who uses a GPU, look from the host; or `docker run --pid=host`.',
    );
  }
  const hidden = mountOf('/proc', mounts)?.options.find((option) => /^hidepid=(?!0$|off$)/.test(option));
  if (hidden !== undefined && system.uid !== 0) {
    add(
      'processes-hidden',
      `/proc is mounted with ${hidden}: whose processes use a GPU is not visible to you, but that they do is.`,
      'Root sees them; or have your group admitted with the mount option `gid=`.',
    );
  }
  for (const path of ['/tmp', '/var/tmp']) {
    const mount = mountOf(path, mounts);
    const why = mount === null || mount.point !== path ? null : whyPrivate(mount);
    if (why === null) continue;
    add(
      'private-tmp',
      `${path} is ${why}: locks of other tools that lie in it can't be seen, nor ours by them.`,
      'Give the service `PrivateTmp=no`, and have the lock directory elsewhere: `install -d -m 1777 /run/lock/gpu-owner`.',
    );
  }
  if (/microsoft/i.test(system.read('/proc/sys/kernel/osrelease'))) {
    add(
      'wsl',
      'This is WSL: the driver is that of Windows, and lists no processes. Programs on the side of Windows are seen by the memory that they use.',
    );
  }
  if (!remarkable)
    report.add('surroundings', 'No container, no private /tmp, processes of others are visible.');
}

function isOtherPidNamespace({ readlink }: System): boolean {
  const namespace = readlink('/proc/self/ns/pid');
  return namespace !== '' && namespace !== FIRST_PID_NAMESPACE;
}
