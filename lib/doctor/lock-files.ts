import { closeSync, openSync, readlinkSync, readSync, type Stats, statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import type { LockDirectory } from '../claims/lock-directory.ts';
import { decodeRecord, leaseInfo, RECORD_SIZE } from '../claims/record.ts';
import { describeProcess, userName } from '../gpus/processes.ts';
import { EXCLUSIVE, native, OFD } from '../native.ts';
import { listWords } from '../text.ts';
import { namesIn, octal, statOf } from './files.ts';
import type { Report } from './finding.ts';
import { sentences } from './installation.ts';
import { type KernelLock, readLocks } from './kernel-locks.ts';
import { mountOf, readMounts } from './mounts.ts';

const ACQUISITION = 'acquisition.lock';
const LOCK_FILE = /\.(lease|lock)$/;
/** What a claim leaves behind that is killed at the wrong moment, on file systems that have no files without a name. */
const LEFTOVER = /\.(lease|lock)\.[A-Za-z0-9]{6}$/;
const LEASE = 0;

/** The files in the lock directory, and in the others where leases may be held. */
export function reportLockFiles(report: Report, directory: LockDirectory): void {
  report.step(`looking at the files in ${listWords(directory.all)}`);
  const names = namesIn(directory.path);
  // Where the directory itself is the problem, that has been said.
  if (directory.problem === null) reportUnusable(report, directory, names);
  reportLeases(report, directory);
  reportLeftovers(report, directory.path, names);
  reportRemoved(report, directory);
  reportStuck(report, directory.path);
}

function reportUnusable(report: Report, directory: LockDirectory, names: readonly string[]): void {
  for (const name of names.filter((each) => LOCK_FILE.test(each))) {
    const path = join(directory.path, name);
    const problem = directory.whyUnusable(name);
    if (problem !== null) {
      const { text, remedy } = sentences(problem.message);
      report.add('lock-file-unusable', text, remedy);
      continue;
    }
    const stat = statOf(path);
    if (stat === null) continue;
    if (stat.nlink > 1) {
      report.add(
        'lock-file-unusable',
        `The lock file ${path} (of ${userName(stat.uid)}) has a second name somewhere: it may be somebody's file that is to be written to, so no claim touches it.`,
        `\`rm ${path}\``,
      );
    } else if ((stat.mode & 0o666) !== 0o666) {
      report.add(
        'lock-file-unusable',
        `The lock file ${path} belongs to ${userName(stat.uid)} and has mode ${octal(stat)}: others can't use it.`,
        `\`chmod 0666 ${path}\``,
      );
    }
  }
}

function reportLeases(report: Report, directory: LockDirectory): void {
  const held = directory.all.map((path) => namesIn(path).filter((name) => isLeased(join(path, name))).length);
  const total = held.reduce((a, b) => a + b, 0);
  if (total === 0 && namesIn(directory.path).length === 0) return; // there was nothing to look at
  report.add(
    'leases',
    total === 0 ? 'No GPU is leased.' : `${total} ${total === 1 ? 'GPU is' : 'GPUs are'} leased.`,
  );
  const elsewhere = total - (held[0] ?? 0);
  if (elsewhere === 0) return;
  report.add(
    'two-lock-directories',
    `${elsewhere} of the leases ${elsewhere === 1 ? 'is' : 'are'} held in ${listWords(directory.others)}, which claimants used before ${directory.path} was there, or since they can't see it. They count.`,
    'Nothing, if that was made lately. If it stays so, some claimants (containers, services) see only the other one: mount it for them.',
  );
}

function isLeased(path: string): boolean {
  if (!path.endsWith('.lease')) return false;
  const descriptor = native().fileOpenForProbe(path);
  if (descriptor < 0) return false;
  try {
    return native().lockProbe(descriptor, OFD, EXCLUSIVE, LEASE, 1) >= 0;
  } finally {
    closeSync(descriptor);
  }
}

function reportLeftovers(report: Report, path: string, names: readonly string[]): void {
  const beside = namesIn(dirname(path)).filter(
    (name) =>
      name.startsWith(`${basename(path)}.`) && /^\.[A-Za-z0-9]{6}$/.test(name.slice(basename(path).length)),
  );
  const found = [
    ...names.filter((name) => LEFTOVER.test(name)).map((name) => join(path, name)),
    ...beside.map((name) => join(dirname(path), name)),
  ];
  if (found.length === 0) return;
  const more = found.length > 4 ? [`${found.length - 4} more`] : [];
  report.add(
    'lock-directory-leftovers',
    `${listWords([...found.slice(0, 4), ...more])}: left behind by a claim that was killed while it made a file. Harmless.`,
    'They may be removed. Files that end in .lease or .lock may not, as long as claims are held.',
  );
}

/** Leases whose file has lost its name: the GPU can be leased a second time. */
function reportRemoved(report: Report, directory: LockDirectory): void {
  const leases = new Set(
    readLocks()
      .filter(isLease)
      .map(({ inode }) => inode),
  );
  if (leases.size === 0) return;
  report.step('looking for leases whose file was removed');
  const told = new Set<string>();
  for (const { descriptor, pid, place } of openFilesIn(directory)) {
    const stat = statBehind(descriptor);
    if (stat === null || stat.nlink > 0 || !leases.has(stat.ino)) continue;
    const file = `${stat.dev}:${stat.ino}`;
    if (told.has(file)) continue; // the processes of a job share it
    told.add(file);
    const { user, command, pid: holder } = leaseInfo(recordOf(descriptor));
    report.add(
      'lease-file-removed',
      `A lease file was removed from ${place} while ${user} holds it (pid ${holder ?? pid}${command === null ? '' : `: ${command}`}): others can lease the same GPU.`,
      'Stop whatever cleans there. End the job and start it again, or keep others from its GPU until it has ended: `gpu-owner hold --devices …`.',
    );
  }
}

/** Of an open file, which a link of /proc leads to. */
function statBehind(link: string): Stats | null {
  try {
    return statSync(link);
  } catch {
    return null;
  }
}

function isLease({ kind, exclusive, start }: KernelLock): boolean {
  return kind === 'OFDLCK' && exclusive && start === LEASE;
}

/** Of the processes that this user may look into: one's own, or all for root. */
function* openFilesIn(
  directory: LockDirectory,
): Generator<{ descriptor: string; pid: number; place: string }> {
  for (const pid of namesIn('/proc')) {
    if (!/^\d+$/.test(pid)) continue;
    for (const number of namesIn(`/proc/${pid}/fd`)) {
      const descriptor = `/proc/${pid}/fd/${number}`;
      try {
        // Of a file that was made without a name, the link never has the right one, but always the directory.
        const place = dirname(readlinkSync(descriptor));
        if (directory.all.includes(place)) yield { descriptor, pid: Number(pid), place };
      } catch {
        // closed meanwhile
      }
    }
  }
}

function recordOf(path: string): Record<string, unknown> | null {
  try {
    const block = Buffer.alloc(RECORD_SIZE);
    const descriptor = openSync(path, 'r');
    try {
      readSync(descriptor, block, 0, RECORD_SIZE, 0);
    } finally {
      closeSync(descriptor);
    }
    return decodeRecord(block);
  } catch {
    return null;
  }
}

const STUCK_AFTER = 1_000;

/** Somebody who was stopped in the middle of a claim: each claim waits for it, until its time is up. */
function reportStuck(report: Report, path: string): void {
  const before = decider(path);
  if (before === null) return;
  native().processSleep(STUCK_AFTER);
  if (decider(path) !== before) return;
  const { name, user } = describeProcess(before);
  report.add(
    'claimant-stuck',
    `${name ?? 'A process'} (pid ${before}, ${user ?? '?'}) has been deciding on a claim for more than a second: it is stopped, or the driver hangs under it. Each claim waits up to 2 s for it, and then goes on.`,
    `If it is stopped: \`kill -CONT ${before}\`; else end it: \`kill ${before}\`.`,
  );
}

/** Who holds the lock under which claimants decide; null: nobody, or nobody who is visible. */
function decider(path: string): number | null {
  const device = mountOf(path, readMounts())?.device;
  const inode = statOf(join(path, ACQUISITION))?.ino;
  const held = readLocks().find(
    (lock) => lock.kind === 'FLOCK' && lock.exclusive && lock.device === device && lock.inode === inode,
  );
  return held?.pid ?? null;
}
