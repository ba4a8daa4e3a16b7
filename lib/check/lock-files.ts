import { closeSync, constants, openSync, readlinkSync, readSync, type Stats, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import {
  type LockDirectory,
  leaseInfo,
  mayBeSomebodysOwn,
  namesCommand,
  readRecord,
} from '../claims/index.ts';
import { ifPossible } from '../errors.ts';
import { EXCLUSIVE, native, OFD } from '../native.ts';
import {
  formatMode,
  type KernelLock,
  listWords,
  processIds,
  readLocks,
  schema,
  userName,
} from '../platform/index.ts';
import type { Report } from './finding.ts';
import { list } from './gpus.ts';
import { sentences } from './installation.ts';
import {
  reportDamagedQueue,
  reportForeignLocks,
  reportOverdue,
  reportStuck,
  reportUnending,
} from './lock-holders.ts';
import { namesIn, statOf } from './system.ts';

const LOCK_FILE = /\.(lease|nested-\d+|lock)$/;
/** The byte of a lease file that is the lease. */
const LEASE = 0;
const EVERYTHING = 0;

/** The files in the lock directory, and in the others where leases may be held. */
export function reportLockFiles(report: Report, directory: LockDirectory): void {
  report.step(`looking at the files in ${listWords(directory.all)}`);
  const names = namesIn(directory.path);
  // Where the directory itself is the problem, that has been said.
  if (directory.problem === null) reportUnusable(report, directory, names);
  reportLeases(report, directory, reportRemoved(report, directory));
  reportForeignLocks(report, directory);
  reportStuck(report, directory.path);
  reportDamagedQueue(report, directory);
  reportUnending(report, directory);
  reportOverdue(report, directory);
}

function reportUnusable(report: Report, directory: LockDirectory, names: readonly string[]): void {
  for (const name of names.filter((each) => LOCK_FILE.test(each))) {
    const path = join(directory.path, name);
    const stat = statOf(path);
    const isLinked = stat?.isFile() === true && stat.nlink > 1;
    const isPrivate = isLinked && mayBeSomebodysOwn({ links: stat.nlink, mode: stat.mode });
    if (isLinked && (isPrivate || !beginsAsOurs(path))) {
      reportForeign(report, path, stat, isPrivate);
      continue;
    }
    const problem = directory.whyUnusable(name);
    if (problem !== null) {
      const { text, remedy } = sentences(problem.message);
      report.add('lock-file-unusable', text, remedy);
      continue;
    }
    if (stat === null) continue;
    if (isLinked) {
      report.add(
        'lock-file-linked',
        `The lock file ${path} (of ${userName(stat.uid)}) has ${stat.nlink} names: somebody linked it, or a backup that makes hard links (\`cp -al\`). Claims use it all the same.`,
        `Leave it where it is: without it, a GPU could be leased twice. As root, \`${namesCommand(path)}\` lists the names; the others can be removed.`,
      );
    }
    if ((stat.mode & 0o666) !== 0o666) {
      report.add(
        'lock-file-unusable',
        `The lock file ${path} belongs to ${userName(stat.uid)} and has mode ${formatMode(stat)}: others can't use it.`,
        `\`chmod 0666 ${path}\``,
      );
    }
  }
}

/**
 * A file with several names that may be a user's own. @param isPrivate whether claims refuse it, and not only write nothing
 * there
 */
function reportForeign(report: Report, path: string, stat: Stats, isPrivate: boolean): void {
  const locked = isLocked(path);
  report.add(
    isPrivate ? 'lock-file-unusable' : 'lock-file-linked',
    `The lock file ${path} (of ${userName(stat.uid)}) has ${stat.nlink} names and mode ${formatMode(stat)}, so it may be a private file that somebody linked there. Claims ${isPrivate ? "don't lock it or write to it" : "don't write to it, so nobody sees who holds what it locks"}.${locked ? ' It is locked now.' : ''}`,
    `As root, \`${namesCommand(path)}\` lists the names. If it is a lock file, ${isPrivate ? `\`chmod 0666 ${path}\`` : 'the other names can be removed'}. ${
      locked
        ? `If not, remove it once it is unlocked; \`fuser -v ${path}\` shows who has it open.`
        : `If not, remove it: \`rm ${path}\`.`
    }`,
  );
}

/** As native/locks/ownership.h has it: what claims write to whatever its names. */
function beginsAsOurs(path: string): boolean {
  const descriptor = native().fileOpenForProbe(path);
  if (descriptor < 0) return false;
  try {
    const bytes = Buffer.alloc(16);
    const text = bytes.toString('latin1', 0, readSync(descriptor, bytes, 0, bytes.length, 0));
    return /^(\{"user":"|period )/.test(text);
  } finally {
    closeSync(descriptor);
  }
}

/** @param removed how many have been told already */
function reportLeases(report: Report, directory: LockDirectory, removed: number): void {
  const total = directory.all.flatMap((path) =>
    namesIn(path).filter((name) => isLeased(join(path, name))),
  ).length;
  if (total === 0 && namesIn(directory.path).length === 0) return; // there was nothing to look at
  report.add(
    'leases',
    `${total === 0 ? 'No' : total} ${total < 2 ? 'GPU is' : 'GPUs are'} leased${removed === 0 ? '' : ' visibly to others'}.`,
  );
}

function isLeased(path: string): boolean {
  return path.endsWith('.lease') && isLocked(path, 1, false);
}

/** @param length in bytes from the lease on @param unknown what to say of a file that can't be opened */
function isLocked(path: string, length = EVERYTHING, unknown = true): boolean {
  const descriptor = native().fileOpenForProbe(path);
  if (descriptor < 0) return unknown;
  try {
    return native().lockProbe(descriptor, OFD, EXCLUSIVE, LEASE, length) >= 0;
  } finally {
    closeSync(descriptor);
  }
}

const MAX_GPUS = 1024;

/** Leases whose file has lost its name: the GPU can be leased a second time. Returns how many there are. */
function reportRemoved(report: Report, directory: LockDirectory): number {
  const leases = new Set((readLocks() ?? []).filter(isLease).map(({ inode }) => inode));
  if (leases.size === 0) return 0;
  report.step('looking for leases whose file was removed');
  const named = new Set(directory.all.flatMap(inodesIn));
  const files = new Set<string>();
  const holders = new Map<string, { count: number; gpus: number[]; what: string }>();
  for (const { descriptor, pid, place } of openFilesIn(directory)) {
    const stat = statBehind(descriptor);
    if (stat === null || named.has(keyOf(stat)) || !leases.has(stat.ino)) continue;
    const file = keyOf(stat);
    if (files.has(file)) continue; // the processes of a job share it
    files.add(file);
    const record = recordOf(descriptor);
    const { user, command, pid: holder } = leaseInfo(record);
    const what = `removed from ${place} while ${user} holds the lease (pid ${holder ?? pid}${command === null ? '' : `: ${command}`})`;
    const known = holders.get(what) ?? { count: 0, gpus: indicesIn(record), what };
    holders.set(what, { ...known, count: known.count + 1 });
  }
  for (const { count, gpus, what } of holders.values()) {
    // Which of several GPUs it is, its file doesn't say.
    const all = gpus.length === count;
    const which = all ? ` of ${list(gpus.map((index) => ({ index })))}` : '';
    const subject = count === 1 ? 'The lease file' : all ? 'The lease files' : `${count} lease files`;
    report.add(
      'lease-file-removed',
      `${subject}${which} ${count === 1 ? 'was' : 'were'} ${what}: others can lease the same ${count === 1 ? 'GPU' : 'GPUs'}.`,
      'Stop the program that removes files there. Then start the job again, or hold its GPUs until it ends: `gpu-owner hold --devices …`.',
    );
  }
  return files.size;
}

/** A removed file may have another name somewhere, in a backup for instance, where no claim looks for it. */
function inodesIn(path: string): string[] {
  return namesIn(path).flatMap((name) => {
    const stat = statOf(join(path, name));
    return stat === null ? [] : [keyOf(stat)];
  });
}

function keyOf({ dev, ino }: Stats): string {
  return `${dev}:${ino}`;
}

function isLease({ kind, exclusive, start }: KernelLock): boolean {
  return kind === 'OFDLCK' && exclusive && start === LEASE;
}

const INDICES = schema.validOf(schema.record({ index: schema.whole(MAX_GPUS - 1) }));

/** The GPUs of the claim, as its record has them: any user may have written it. */
function indicesIn(record: Record<string, unknown> | null): number[] {
  return INDICES(record?.gpus, '').map(({ index }) => index);
}

/** The open files of processes that this user may look into: one's own, or all for root. */
function* openFilesIn(
  directory: LockDirectory,
): Generator<{ descriptor: string; pid: number; place: string }> {
  for (const pid of processIds()) {
    for (const number of namesIn(`/proc/${pid}/fd`)) {
      const descriptor = `/proc/${pid}/fd/${number}`;
      // The link of a file that was made without a name never has the right one, but always the directory. The program may have closed it.
      const place = ifPossible(() => dirname(readlinkSync(descriptor)), null);
      if (place !== null && directory.all.includes(place) && isHere(pid, place))
        yield { descriptor, pid, place };
    }
  }
}

/** Whether a path means the same directory to a process: with mounts of its own (PrivateTmp, containers) it may be another one. */
function isHere(pid: number, path: string): boolean {
  const theirs = statOf(`/proc/${pid}/root${path}`);
  const ours = statOf(path);
  if (theirs === null || ours === null) return theirs === ours; // removed for both, or never there for one
  return keyOf(theirs) === keyOf(ours);
}

/** The status of an open file, which a link of /proc leads to. */
function statBehind(link: string): Stats | null {
  return ifPossible(() => statSync(link), null);
}

function recordOf(path: string): Record<string, unknown> | null {
  return ifPossible(() => {
    // The program that has it open may have put a FIFO there meanwhile.
    const descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
    try {
      return readRecord(descriptor);
    } finally {
      closeSync(descriptor);
    }
  }, null);
}
