import { accessSync, constants, type Stats, statfsSync } from 'node:fs';
import { dirname } from 'node:path';
import { choose, LockDirectory, PREFERRED } from '../claims/index.ts';
import { loadConfiguration, simulatedMachine } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { formatBytes, networkFileSystem, userName } from '../platform/index.ts';
import { octal, statOf } from './files.ts';
import type { Options, Report } from './finding.ts';
import { sentences } from './installation.ts';
import { reportLockFiles } from './lock-files.ts';
import { reportSharing } from './lock-sharing.ts';
import { reportLocking } from './locking.ts';
import { mountOf, readMounts } from './mounts.ts';

/** So little is left that the files of a few more GPUs may not fit. */
const LITTLE_SPACE = 1024 ** 2;
const FEW_INODES = 100;

/** The directory in which all claims of the machine must meet. */
export function examineLockDirectory(report: Report, options: Options): void {
  const configured = configuredDirectory();
  report.step('looking for the lock directory');
  let directory: LockDirectory | null;
  let path: string;
  try {
    path = choose(options.lockDirectory, { lockDirectory: configured }).path;
    directory = LockDirectory.find(options.lockDirectory, { lockDirectory: configured });
  } catch (error) {
    if (!(error instanceof GPUOwnerError) || error.code === 'ERR_UNSUPPORTED_PLATFORM') throw error;
    const { text, remedy } = sentences(error.message);
    report.add('lock-directory-unusable', text, remedy);
    return;
  }
  const why = whyThisOne(path, options, configured);
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
  try {
    // The user's own file has no say in this, and may lie on a disk that hangs.
    return loadConfiguration({ ...process.env, XDG_CONFIG_HOME: '/nonexistent' }).lockDirectory;
  } catch {
    return undefined;
  }
}

function whyThisOne(path: string, options: Options, configured: string | undefined): string {
  if (options.lockDirectory !== undefined) return 'named by --lock-dir';
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
    `${PREFERRED} exists, but belongs to ${userName(stat.uid)} and not to root, so it isn't used: anybody could have made it.`,
    `As root: \`chown root:root ${PREFERRED}; chmod 1777 ${PREFERRED}\`, or remove it.`,
  );
}

function reportAbsent(report: Report, path: string, why: string): void {
  const parent = dirname(path);
  const there = statOf(parent);
  const network = there === null ? undefined : networkFileSystem(parent);
  let problem: string | null = null;
  if (network !== undefined) problem = `${parent} is on a network file system (${network})`;
  // Of a link, only what it leads to counts.
  else if (there !== null && !there.isDirectory() && !there.isSymbolicLink())
    problem = `${parent} is not a directory`;
  if (problem === null) {
    try {
      accessSync(parent, constants.W_OK | constants.X_OK);
    } catch (error) {
      problem =
        PARENT_PROBLEMS[(error as NodeJS.ErrnoException).code ?? '']?.(parent) ?? (error as Error).message;
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
  EACCES: (parent) => `${userName(process.geteuid?.() ?? 0)} may not make anything in ${parent}`,
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
  const mode = octal(stat);
  const mounts = readMounts();
  const mount = mountOf(path, mounts);
  report.add(
    'lock-directory',
    `${path} (${why}): belongs to ${userName(stat.uid)}, mode ${mode}${mount === null ? '' : `, on ${mount.type}`}${room(path)}.`,
  );
  if ((stat.mode & 0o003) !== 0o003) {
    report.add(
      'lock-directory-mode',
      `${path} has mode ${mode}: only ${(stat.mode & 0o030) === 0o030 ? `group ${stat.gid}` : userName(stat.uid)} can claim GPUs, and others see no leases.`,
      `If all users shall: \`chmod 1777 ${path}\`.`,
    );
  }
  if ((stat.mode & 0o022) !== 0 && (stat.mode & 0o1000) === 0) {
    report.add(
      'lock-directory-not-sticky',
      `${path} has mode ${mode}, so that users can remove each other's lock files, after which a GPU could be leased twice.`,
      `\`chmod 1777 ${path}\``,
    );
  }
  if (stat.uid !== 0 && why.startsWith('the default')) {
    report.add(
      'lock-directory-owner',
      `${path} belongs to ${userName(stat.uid)}, who claimed first, and could remove the lock files of others.`,
      `For a directory that is the administrator's, as root: \`install -d -m 1777 -o root -g root ${PREFERRED}\`.`,
    );
  }
  reportSpace(report, path);
  reportSharing(report, path, stat, mounts, why);
  report.step(`trying a lock in ${path}`);
  reportLocking(report, path);
}

function room(path: string): string {
  const { bavail, bsize, files, ffree } = statfsSync(path);
  return `, ${formatBytes(bavail * bsize)}${files > 0 ? ` and ${ffree} inodes` : ''} free`;
}

function reportSpace(report: Report, path: string): void {
  const { bavail, bsize, files, ffree, blocks } = statfsSync(path);
  // Some file systems don't count (btrfs has no number of inodes, some have no size).
  const space = blocks > 0 ? bavail * bsize : Number.POSITIVE_INFINITY;
  const inodes = files > 0 ? ffree : Number.POSITIVE_INFINITY;
  const remedy = `Find what fills it: \`df -h ${path}; df -i ${path}\`.`;
  if (space < 4096 || inodes < 1) {
    report.add(
      'lock-directory-full',
      `The file system of ${path} is full (no ${space < 4096 ? 'space' : 'inodes'} left): GPUs that have no lease file yet can't be claimed.`,
      remedy,
    );
  } else if (space < LITTLE_SPACE || inodes < FEW_INODES) {
    report.add(
      'lock-directory-space',
      `The file system of ${path} is nearly full: ${formatBytes(space)} and ${inodes} inodes are left.`,
      remedy,
    );
  }
}
