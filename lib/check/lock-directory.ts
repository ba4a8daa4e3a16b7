import { accessSync, closeSync, constants, openSync, type Stats, statfsSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { chooseLockDirectory, LockDirectory, PREFERRED } from '../claims/index.ts';
import { loadConfiguration, simulatedMachine } from '../config/index.ts';
import { errorCode, errorMessage, GPUOwnerError, ifPossible } from '../errors.ts';
import { whichContainer } from '../gpus/index.ts';
import { EXCLUSIVE, errno, native, OFD } from '../native.ts';
import {
  formatBytes,
  formatMode,
  isRoot,
  type Mount,
  mountOf,
  networkFileSystem,
  readMounts,
  systemError,
  userName,
} from '../platform/index.ts';
import type { Report } from './finding.ts';
import { sentences } from './installation.ts';
import { reportLockFiles } from './lock-files.ts';
import { readOrEmpty, statOf, whyPrivate } from './system.ts';

/** The directory in which all claims of the machine must meet. */
export function checkLockDirectory(report: Report): void {
  const configured = configuredDirectory();
  report.step('looking for the lock directory');
  let directory: LockDirectory | null;
  let path: string;
  try {
    path = chooseLockDirectory(undefined, { lockDirectory: configured }).path;
    directory = LockDirectory.find(undefined, { lockDirectory: configured });
  } catch (error) {
    if (!(error instanceof GPUOwnerError) || error.code === 'ERR_UNSUPPORTED_PLATFORM') throw error;
    const { text, remedy } = sentences(error.message);
    report.add('lock-directory-unusable', text, remedy);
    return;
  }
  const why = whyThisOne(path, configured);
  reportPassedOver(report, directory);
  report.step(`looking at ${path}`);
  const stat = statOf(path);
  if (directory === null || stat === null) {
    reportAbsent(report, path, why);
  } else {
    reportPresent(report, directory, stat, why);
  }
  if (directory !== null) reportLockFiles(report, directory);
}

/** Where a file of configuration names it. Files that are broken are told elsewhere. */
function configuredDirectory(): string | undefined {
  // The user's own file has no say in this, and may lie on a disk that hangs.
  const env = { ...process.env, XDG_CONFIG_HOME: '/nonexistent' };
  return ifPossible(() => loadConfiguration(env).lockDirectory, undefined);
}

function whyThisOne(path: string, configured: string | undefined): string {
  if (process.env.GPU_OWNER_LOCK_DIR) return 'named by GPU_OWNER_LOCK_DIR';
  if (simulatedMachine() !== null) return "the simulated machine's own";
  if (configured !== undefined) return "named by the machine's configuration file";
  return path === PREFERRED ? "the administrator's" : `the default; there is no ${PREFERRED}`;
}

/** An administrator's directory that isn't believed. */
function reportPassedOver(report: Report, directory: LockDirectory | null): void {
  if (!directory?.others.includes(PREFERRED)) return;
  const stat = statOf(PREFERRED);
  if (stat === null) return;
  report.add(
    'lock-directory-passed-over',
    `${PREFERRED} exists, but belongs to ${userName(stat.uid)} and not to root, so claims don't use it: any user could have made it.`,
    `As root: \`chown root:root ${PREFERRED}; chmod 1777 ${PREFERRED}\`, or remove it.`,
  );
}

function reportAbsent(report: Report, path: string, why: string): void {
  const parent = dirname(path);
  const there = statOf(parent);
  const network = there === null ? undefined : networkFileSystem(parent);
  let problem: string | null = null;
  if (network !== undefined) problem = `${parent} is on a network file system (${network})`;
  // For a link, only its target counts.
  else if (there !== null && !there.isDirectory() && !there.isSymbolicLink())
    problem = `${parent} is not a directory`;
  if (problem === null) {
    try {
      accessSync(parent, constants.W_OK | constants.X_OK);
    } catch (error) {
      problem = PARENT_PROBLEMS[errorCode(error) ?? '']?.(parent) ?? errorMessage(error);
    }
  }
  // A simulated machine makes its own place when it is first used.
  if (problem === null || (simulatedMachine() !== null && why.startsWith('the simulated'))) {
    report.add(
      'lock-directory',
      `${path} (${why}) doesn't exist yet. The first claim makes it, for all users.`,
    );
  } else {
    report.add(
      'lock-directory-unusable',
      `${path} (${why}) doesn't exist, and can't be made: ${problem}.`,
      `As root: \`install -d -m 1777 -o root -g root ${PREFERRED}\`, or name another one: \`lockDirectory\` in /etc/gpu-owner/config.yaml.`,
    );
  }
}

const PARENT_PROBLEMS: Record<string, (parent: string) => string> = {
  ENOENT: (parent) => `${parent} doesn't exist`,
  ENOTDIR: (parent) => `a part of ${parent} is not a directory`,
  EACCES: (parent) => `${userName(process.geteuid?.() ?? 0)} can't create files in ${parent}`,
  EROFS: (parent) => `the file system of ${parent} is read-only`,
};

function reportPresent(report: Report, directory: LockDirectory, stat: Stats, why: string): void {
  const { path } = directory;
  // In the words of a claim that it makes fail.
  const { problem } = directory;
  if (problem !== null) {
    const { text, remedy } = sentences(problem.message);
    report.add('lock-directory-unusable', text, remedy);
    return;
  }
  const mode = formatMode(stat);
  const mounts = readMounts();
  const mount = mountOf(path, mounts);
  report.add(
    'lock-directory',
    `${path} (${why}): belongs to ${userName(stat.uid)}, mode ${mode}${mount === null ? '' : `, on ${mount.type}`}${room(path)}.`,
  );
  if (!isRoot(stat.uid) && (stat.mode & 0o022) !== 0)
    report.add(
      'lock-directory-removable',
      `${path} belongs to ${userName(stat.uid)}, who can remove the lock files of others, and then claim what they hold. \`gpu-owner enforce\` ends no process because of leases there.`,
      MAKE,
    );
  if ((stat.mode & 0o003) !== 0o003) {
    report.add(
      'lock-directory-mode',
      `${path} has mode ${mode}: only ${(stat.mode & 0o030) === 0o030 ? `group ${stat.gid}` : userName(stat.uid)} can claim GPUs, and others see no leases.`,
      `To let all users claim: \`chmod 1777 ${path}\`.`,
    );
  }
  if ((stat.mode & 0o022) !== 0 && (stat.mode & 0o1000) === 0) {
    report.add(
      'lock-directory-not-sticky',
      `${path} has mode ${mode}: users can remove each other's lock files, and then a GPU can be leased twice.`,
      `\`chmod 1777 ${path}\``,
    );
  }
  reportSharing(report, path, stat, mounts, why);
  report.step(`trying a lock in ${path}`);
  reportLocking(report, path);
}

function room(path: string): string {
  const { bavail, bsize, files, ffree } = statfsSync(path);
  return `, ${formatBytes(bavail * bsize)}${files > 0 ? ` and ${ffree} inodes` : ''} free`;
}

const MAKE = `As root, on the machine: \`install -d -m 1777 -o root -g root ${PREFERRED}\`. That directory is not private.`;

/** Whether others see the same lock directory at the same path: locks that others can't see protect from none. */
function reportSharing(
  report: Report,
  path: string,
  stat: Stats,
  mounts: readonly Mount[],
  why: string,
): void {
  // A user who simulates, or names a directory for this call only, may well want it for themselves.
  if (why.startsWith('the simulated')) return;
  const mount = mountOf(path, mounts);
  if (mount === null) return;
  const reason = whyPrivate(mount);
  if (reason !== null) {
    report.add(
      'lock-directory-private',
      `${path} is ${reason}: claims here don't see those of the rest of the machine.`,
      MAKE,
    );
    return;
  }
  if (differsFromInit(path, stat)) {
    report.add(
      'lock-directory-private',
      `${path} is another directory for this process than for the rest of the machine (a mount namespace): claims here don't see the others.`,
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
    `${path} seems to be inside this container (${container}): claims here don't see those of the host and of other containers.`,
    `Start the container with the host's: \`docker run -v ${path}:${path} …\`. This is harmless if no other container has the same GPUs.`,
  );
}

/** Only root may look; false where that can't be told. */
function differsFromInit(path: string, { dev, ino }: Stats): boolean {
  return ifPossible(() => {
    const there = statSync(`/proc/1/root${path}`, { throwIfNoEntry: false });
    return there === undefined || there.dev !== dev || there.ino !== ino;
  }, false);
}

/** As in Linux; Node.js has no name for it. The file never gets a name, so that nothing can be left behind. */
const O_TMPFILE = 0o20000000 | constants.O_DIRECTORY;

/** Whether locks exclude there, tried on a file without a name: no claim is disturbed. */
function reportLocking(report: Report, path: string): void {
  const file = ifPossible(() => openSync(path, O_TMPFILE | constants.O_RDWR, 0o600), null);
  if (file === null) return; // full, or the file system has no such files
  try {
    const problem = tryLocks(file);
    if (problem === null) {
      report.add('locks', `Locks work in ${path} (tested with O_TMPFILE)${protectedRegular()}.`);
    } else {
      report.add(
        'locks-broken',
        `Locks don't work in ${path}: ${problem}.`,
        'Put the lock directory on a local file system (ext4, xfs, tmpfs): `lockDirectory` in /etc/gpu-owner/config.yaml.',
      );
    }
  } finally {
    closeSync(file);
  }
}

/** A second opening of the file must find the lock of the first in its way; null: it does. */
function tryLocks(file: number): string | null {
  const taken = native().lockTry(file, OFD, EXCLUSIVE, 0, 1);
  if (taken !== 0) return `the kernel refuses them (${systemError(taken)})`;
  const second = ifPossible(() => openSync(`/proc/self/fd/${file}`, constants.O_RDWR), null);
  if (second === null) return null; // the lock was granted; /proc is missing
  try {
    const again = native().lockTry(second, OFD, EXCLUSIVE, 0, 1);
    if (again === 0) return 'the same lock is granted twice';
    if (again !== errno.EAGAIN) return systemError(again);
    return native().lockProbe(second, OFD, EXCLUSIVE, 0, 1) === 0
      ? null
      : 'a probe does not see a lock that is held';
  } finally {
    closeSync(second);
  }
}

/** Names the setting that makes other tools fail on each other's lock files in /tmp. */
function protectedRegular(): string {
  const level = readOrEmpty('/proc/sys/fs/protected_regular').trim();
  return level === '' || level === '0' ? '' : `; fs.protected_regular is ${level}, which gpu-owner supports`;
}
