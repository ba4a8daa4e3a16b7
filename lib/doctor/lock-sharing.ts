import { type Stats, statSync } from 'node:fs';
import { PREFERRED } from '../claims/index.ts';
import { whichContainer } from '../gpus/index.ts';
import type { Report } from './finding.ts';
import { type Mount, mountOf, whyPrivate } from './mounts.ts';

const MAKE = `As root, on the machine: \`install -d -m 1777 -o root -g root ${PREFERRED}\`. It isn't private.`;

/** Whether others see the same lock directory at the same path: locks that nobody else can see protect from nobody. */
export function reportSharing(
  report: Report,
  path: string,
  stat: Stats,
  mounts: readonly Mount[],
  why: string,
): void {
  // Whoever simulates, or names a directory for this call only, may well want it for themselves.
  if (why.startsWith('the simulated')) return;
  const mount = mountOf(path, mounts);
  if (mount === null) return;
  const reason = whyPrivate(mount);
  if (reason !== null) {
    report.add(
      'lock-directory-private',
      `${path} is ${reason}: claims here don't meet those of the rest of the machine.`,
      MAKE,
    );
    return;
  }
  if (differsFromInit(path, stat)) {
    report.add(
      'lock-directory-private',
      `${path} is another directory for this process than for the machine's first one (a mount namespace): claims here don't meet those of the rest.`,
      MAKE,
    );
    return;
  }
  const container = whichContainer();
  if (container === null) return;
  // A directory of the host shows as a part of a file system.
  if (mount.root !== '/') return;
  report.add(
    'lock-directory-in-container',
    `${path} seems to lie inside this container (${container}): claims of the host and of other containers don't show here, nor these there.`,
    `Start the container with the host's: \`docker run -v ${path}:${path} …\`. If it has its GPUs to itself, all is well.`,
  );
}

/** Only root may look; false where that can't be told. */
function differsFromInit(path: string, { dev, ino }: Stats): boolean {
  try {
    const there = statSync(`/proc/1/root${path}`, { throwIfNoEntry: false });
    return there === undefined || there.dev !== dev || there.ino !== ino;
  } catch {
    return false;
  }
}
