import { accessSync, closeSync, constants, openSync, statfsSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { cannotMake, chooseLockDirectory, LockDirectory, PREFERRED } from '../claims/index.ts';
import { loadConfiguration, simulatedMachine } from '../config/index.ts';
import { ifPossible } from '../errors.ts';
import { EXCLUSIVE, errno, native, OFD } from '../native.ts';
import {
  formatBytes,
  formatMode,
  isRoot,
  type Mount,
  mountOf,
  readMounts,
  statusOf,
  systemError,
  userName,
} from '../platform/index.ts';
import type { Report } from './finding.ts';

const MAKE = `As root, on the machine: \`install -d -m 1777 -o root -g root ${PREFERRED}\`. That directory is not private.`;

/** The directory in which all claims of the machine must meet. */
export function checkLockDirectory(report: Report): void {
  const configuration = loadConfiguration();
  report.step('looking for the lock directory');
  const { path } = chooseLockDirectory(undefined, configuration);
  const directory = LockDirectory.find(undefined, configuration);
  if (directory !== null && directory.problem !== null) throw directory.problem;
  const why = whyThisOne(path, configuration.lockDirectory);
  report.step(`looking at ${path}`);
  const status = statusOf(path);
  // A simulated machine makes its own place when it is first used.
  const isSimulated = why === SIMULATED;
  if (status === null) {
    if (!isSimulated) tryToMake(path);
    report.add(
      'lock-directory',
      `${path} (${why}) doesn't exist yet. The first claim makes it, for all users.`,
    );
    return;
  }
  const mount = mountOf(path, readMounts());
  const isOwn = isRoot(status.uid) || (isSimulated && status.uid === process.geteuid?.());
  const owner = isOwn ? '' : ', who can remove the lock files of others and claim what they hold';
  const isOpen = (status.mode & 0o022) !== 0 && (status.mode & 0o1000) === 0;
  const others = isOpen ? ", so users can remove each other's lock files" : '';
  const text = `${path} (${why}): belongs to ${userName(status.uid)}${owner}, mode ${formatMode(status)}${others}${mount === null ? '' : `, on ${mount.type}`}${room(path)}.`;
  if (isOpen || !isOwn) {
    report.add('lock-directory-removable', text, `As root: \`chown root:root ${path}; chmod 1777 ${path}\`.`);
  } else {
    report.add('lock-directory', text);
  }
  // A user who simulates may well want the directory for themselves.
  if (!isSimulated && mount !== null) reportPrivate(report, path, mount);
  report.step(`trying a lock in ${path}`);
  reportLocking(report, path);
}

const SIMULATED = "the simulated machine's own";

function whyThisOne(path: string, configured: string | undefined): string {
  if (process.env.GPU_OWNER_LOCK_DIR) return 'named by GPU_OWNER_LOCK_DIR';
  if (simulatedMachine() !== null) return SIMULATED;
  if (configured !== undefined) return "named by the machine's configuration file";
  return path === PREFERRED ? "the administrator's" : `the default; there is no ${PREFERRED}`;
}

/** @throws the error of a claim that could not make it */
function tryToMake(path: string): void {
  try {
    accessSync(dirname(path), constants.W_OK | constants.X_OK);
  } catch (error) {
    throw cannotMake(path, -((error as NodeJS.ErrnoException).errno ?? 0));
  }
}

function room(path: string): string {
  const { bavail, bsize, files, ffree } = statfsSync(path);
  return `, ${formatBytes(bavail * bsize)}${files > 0 ? ` and ${ffree} inodes` : ''} free`;
}

/** Whether others see the same lock directory at the same path: locks that others can't see protect from none. */
function reportPrivate(report: Report, path: string, mount: Mount): void {
  const why =
    whyPrivate(mount) ??
    (differsFromInit(path)
      ? 'another directory for this process than for the rest of the machine (a mount namespace)'
      : null);
  if (why === null) return;
  report.add(
    'lock-directory-private',
    `${path} is ${why}: claims here don't see those of the rest of the machine.`,
    MAKE,
  );
}

/**
 * Why what is mounted there isn't what others see at the same path; null: nothing tells that it isn't. systemd's PrivateTmp
 * and PAM's private directories mount a directory of their own over /tmp and /var/tmp.
 */
export function whyPrivate({ root }: Mount): string | null {
  if (root.includes('/systemd-private-')) return 'private to this service (PrivateTmp of systemd)';
  if (/[/.-]inst(ance)?s?\//.test(root)) return `private to this session (it is ${root} of its file system)`;
  return null;
}

/** Only root may look; false where that can't be told. */
function differsFromInit(path: string): boolean {
  return ifPossible(() => {
    const [here, there] = [path, `/proc/1/root${path}`].map((each) =>
      statSync(each, { throwIfNoEntry: false }),
    );
    return there?.dev !== here?.dev || there?.ino !== here?.ino;
  }, false);
}

/** As in Linux; Node.js has no name for it. The file never gets a name, so that nothing stays. */
const O_TMPFILE = 0o20000000 | constants.O_DIRECTORY;

/** Whether locks exclude there, tried on a file without a name: no claim is disturbed. */
function reportLocking(report: Report, path: string): void {
  const file = ifPossible(() => openSync(path, O_TMPFILE | constants.O_RDWR, 0o600), null);
  if (file === null) return; // full, or the file system has no such files
  try {
    const problem = tryLocks(file);
    if (problem === null) return;
    report.add(
      'locks-broken',
      `Locks don't work in ${path}: ${problem}.`,
      'Put the lock directory on a local file system (ext4, xfs, tmpfs): `lockDirectory` in /etc/gpu-owner/config.yaml.',
    );
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
    return again === errno.EAGAIN ? null : systemError(again);
  } finally {
    closeSync(second);
  }
}
