import { statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import {
  DECISION_EPOCHS,
  findOverdue,
  LEASE,
  type LockDirectory,
  leaseNames,
  readOverdue,
} from '../claims/index.ts';
import { resetOf } from '../gpus/index.ts';
import { native } from '../native.ts';
import {
  describeOwner,
  describeProcess,
  formatSince,
  type KernelLock,
  type LockOwner,
  listWords,
  lockedFiles,
  mountOf,
  ownersOf,
  parseLocks,
  processIds,
  readLink,
  readLocks,
  readMounts,
  readProcessStat,
  userName,
} from '../platform/index.ts';
import {
  findDamagedQueue,
  findRecordedLocks,
  findUnexplainedLocks,
  type UnexplainedLock,
} from '../status/index.ts';
import type { Report } from './finding.ts';
import { namesIn, readOrEmpty, statOf } from './system.ts';

/** Longer than a claim takes to write who it is, in ms; the decision lock may change hands meanwhile. */
const RECORDING_MS = 250;
const SEARCH_TIMEOUT_MS = 2_000;

/**
 * Locks that programs other than gpu-owner have on lock files, and leases whose record names another user: anybody may lock and
 * write these. Root sees the owner of each lock, others those of their own processes and of POSIX locks.
 */
export function reportForeignLocks(report: Report, directory: LockDirectory): void {
  report.step('looking for locks that no claim has');
  const before = findUnexplainedLocks(directory).map(({ path }) => path);
  if (before.length > 0) {
    native().processSleep(RECORDING_MS);
    for (const lock of findUnexplainedLocks(directory)) {
      const { path, owners } = lock;
      // A claim whose record can't be written is told of with its file.
      if (before.includes(path) && !owners.some(({ isClaim }) => isClaim))
        report.add('foreign-lock', whatIsLocked(path, owners, effectOf(lock)), remedyFor(path, owners));
    }
  }
  const files = lockedFiles(SEARCH_TIMEOUT_MS).filter(({ pid }) => isOurNamespace(pid));
  reportForged(report, directory, files);
}

function effectOf(lock: UnexplainedLock): string {
  switch (lock.of) {
    case 'lease':
      return `${lock.uuid} can't be claimed until that lock is released`;
    case 'decision':
      return 'claims wait up to 2 s, then proceed without that lock, in no order';
    case 'queue':
      return 'no request can join the wait queue until that lock is released, so requests are served in no order';
  }
}

function whatIsLocked(path: string, owners: readonly LockOwner[], effect: string): string {
  const who =
    owners.length === 0
      ? "a program that isn't visible here: it is not a gpu-owner claim, or it can't write its record"
      : `${listWords(owners.map(describeOwner))}, which ${owners.length === 1 ? 'is not a gpu-owner claim' : 'are not gpu-owner claims'}`;
  return `${path} is locked by ${who}: ${effect}.`;
}

function remedyFor(path: string, owners: readonly LockOwner[]): string {
  if (owners.length === 0)
    return `As root, \`fuser -v ${path}\` shows who has it open, and \`gpu-owner doctor\` who locks it.`;
  const pids = owners.map(({ pid }) => pid).join(' ');
  return `End it, as its user or as root: \`kill ${pids}\`. \`fuser -v ${path}\` shows who has the file open.`;
}

/** Locks whose record names a user to whom none of the processes belongs that have them. */
function reportForged(report: Report, directory: LockDirectory, files: ReturnType<typeof lockedFiles>): void {
  for (const { of, path, uid, user, pid, owners } of findRecordedLocks(directory, files)) {
    if (of === 'lease' && uid === null) continue;
    if (owners.length === 0 || owners.some((owner) => owner.uid === null || owner.uid === uid)) continue;
    const who = `${user} (pid ${pid ?? '?'})`;
    const have = `${listWords(owners.map(describeOwner))} ${owners.length === 1 ? 'has' : 'have'}`;
    report.add(
      'foreign-lock',
      of === 'lease'
        ? `${basename(path)} says that ${who} holds the lease, but ${have} it locked: the record is forged, or was made by a program that runs as somebody else.`
        : `${path} says that ${who} waits there, but ${have} that slot locked: the record is forged. A waiter that doesn't take a free GPU is skipped after some seconds.`,
      remedyFor(path, owners),
    );
  }
}

/** Users of containers may have other numbers inside. */
function isOurNamespace(pid: number): boolean {
  const own = readLink('/proc/self/ns/user');
  return own !== null && readLink(`/proc/${pid}/ns/user`) === own;
}

const ACQUISITION = 'acquisition.lock';

/** Claims that were suspended while they decided: the others waited for each of them once. */
export function reportStuck(report: Report, path: string): void {
  for (const { pid, starts } of lastingLocks(join(path, ACQUISITION), true)) {
    if (!starts.some((start) => start >= DECISION_EPOCHS)) continue; // no claim: reportForeignLocks has it
    report.add(
      'claimant-stuck',
      `${whoIs(pid)} has been deciding on a claim for more than a second: it is suspended, or a call of the driver hangs. Other claims wait up to 2 s for it, then proceed.`,
      wakeOrEnd(pid),
    );
  }
}

/** So many places of the wait queue no process of ours has. */
const MIN_PLACES = 64;

/** Processes that lock so much of the wait queue's file that it is of no use. */
export function reportDamagedQueue(report: Report, directory: LockDirectory): void {
  const path = findDamagedQueue(directory);
  if (path === null) return;
  const holders = lockersOf(path, MIN_PLACES);
  report.add(
    'queue-spoilt',
    `A program has locked more of ${path} than waiters do, so claims proceed without the wait queue. ${
      holders.length === 0
        ? 'Only root can see which one.'
        : listWords(holders.map(({ pid, locks }) => `${whoIs(pid)} holds ${locks} locks there.`))
    }`,
    holders.length === 0
      ? 'Run `gpu-owner doctor` as root: it names the process.'
      : `End it: \`kill ${holders.map(({ pid }) => pid).join(' ')}\`.`,
  );
}

function whoIs(pid: number): string {
  const { name, user } = describeProcess(pid);
  return `${name ?? 'A process'} (pid ${pid}, ${user ?? '?'})`;
}

function wakeOrEnd(pid: number): string {
  return `If it is suspended, resume it: \`kill -CONT ${pid}\`. Otherwise end it: \`kill ${pid}\`.`;
}

/** How long a process that was killed may take to end, in ms. */
const ENDING = 500;

/**
 * Processes that were killed and can't end, because a call of a driver is stuck in the kernel: what they had locked stays locked.
 * Root sees all of them, others their own.
 */
export function reportUnending(report: Report, directory: LockDirectory): void {
  const suspects = unending(directory);
  if (suspects.size === 0) return;
  native().processSleep(ENDING);
  for (const [pid, files] of unending(directory)) {
    if (!suspects.has(pid)) continue;
    const { name, user } = describeProcess(pid);
    report.add(
      'process-stuck',
      `${name ?? 'A process'} (pid ${pid}, ${user ?? '?'}) was killed and can't end: a call is stuck in the kernel, most probably in the driver. Until then it keeps ${listWords(files)} locked.`,
      `See \`dmesg\`. The process can only end when that call returns. ${resetOf('N')}, or reboot.`,
    );
  }
}

/** By PID, the lock files that they have open. Files of jobs and the ledger of usage are left out: no claim waits for these. */
function unending(directory: LockDirectory): Map<number, string[]> {
  const found = new Map<number, string[]>();
  const names = new Map<number, string>();
  for (const path of directory.all) {
    for (const name of namesIn(path))
      if (!/^job-|^usage$/.test(name)) names.set(statOf(join(path, name))?.ino ?? 0, name);
  }
  for (const pid of processIds()) {
    if (!/^[ZD]$/.test(readProcessStat(pid)?.state ?? '')) continue;
    if (describeProcess(pid).alive !== 'dying') continue;
    // The main thread, where it has ended, has none open any longer; all others have the same.
    const files = namesIn(`/proc/${pid}/task`).flatMap((thread) =>
      filesOf(`/proc/${pid}/task/${thread}/fd`, directory, names),
    );
    if (files.length > 0) found.set(pid, [...new Set(files)].sort());
  }
  return found;
}

function filesOf(
  descriptors: string,
  directory: LockDirectory,
  names: ReadonlyMap<number, string>,
): string[] {
  return namesIn(descriptors).flatMap((number) => {
    const descriptor = `${descriptors}/${number}`;
    // The link of a file that was made without a name never has the right one, but always the directory.
    if (!directory.all.includes(dirname(readLink(descriptor) ?? ''))) return [];
    const name = names.get(statSync(descriptor, { throwIfNoEntry: false })?.ino ?? 0);
    return name === undefined ? [] : [name];
  });
}

/** Preemptible leases whose keepers don't end them: their keepers are suspended or killed, or belong to no gpu-owner. */
export function reportOverdue(report: Report, directory: LockDirectory): void {
  const overdue = readOverdue(directory);
  for (const name of overdue.length === 0 ? [] : leaseNames(directory)) {
    const lease = findOverdue(directory, name.replace(/\.lease$/, ''), overdue);
    if (lease === undefined) continue;
    const owners: LockOwner[] = [];
    for (const descriptor of directory.filesNamed(name)) owners.push(...ownersOf(descriptor, LEASE));
    const whose = `${userName(lease.job.uid)}'s preemptible job with ${basename(name, '.lease')}`;
    const have = owners.length === 0 ? '' : ` ${listWords(owners.map(describeOwner))} still have it.`;
    report.add(
      'preemption-overdue',
      `${whose} was asked to give way at ${formatSince(lease.askedAt)}, and hasn't within its grace.${have} Other jobs give way in its place, and it counts for its user's limit.`,
      owners.length === 0
        ? 'As root, `gpu-owner doctor` names its processes: resume them with `kill -CONT`, or end them.'
        : `If they are suspended, resume them: \`kill -CONT ${pids(owners)}\`. Otherwise end them: \`kill ${pids(owners)}\`.`,
    );
  }
}

const pids = (owners: readonly LockOwner[]) => owners.map(({ pid }) => pid).join(' ');

const LOOKS = 5;
const LOOK_INTERVAL_MS = 250;

/** A lock of an open file, and who has that open. */
interface LastingLock {
  start: number;
  pid: number;
  /** Where all locks of that open file begin. */
  starts: readonly number[];
}

/**
 * The open-file-description locks on a file that last longer than a second, as far as this user may look into the processes that have
 * it open: one's own, or all for root. Whether a process is suspended, no state in /proc tells for sure.
 */
function lastingLocks(path: string, exclusive: boolean): LastingLock[] {
  const device = mountOf(path, readMounts())?.device;
  const inode = statOf(path)?.ino;
  const matches = (lock: KernelLock) =>
    lock.kind === 'OFDLCK' && lock.exclusive === exclusive && lock.device === device && lock.inode === inode;
  if (!readLocks()?.some(matches)) return [];
  const startsIn = (file: string) =>
    parseLocks(readOrEmpty(file))
      .filter(matches)
      .map(({ start }) => start);
  let found = descriptorFiles()
    .map(({ pid, file }) => ({ pid, file, starts: startsIn(file) }))
    .flatMap((each) => (each.starts[0] === undefined ? [] : [{ ...each, start: each.starts[0] }]));
  for (let look = 1; look < LOOKS && found.length > 0; look++) {
    native().processSleep(LOOK_INTERVAL_MS);
    found = found.filter(({ file, start }) => startsIn(file)[0] === start);
  }
  return found.map(({ pid, start, starts }) => ({ pid, start, starts }));
}

/** The processes with at least so many open-file-description locks on a file, as far as this user may look into them. */
function lockersOf(path: string, least: number): { pid: number; locks: number }[] {
  const device = mountOf(path, readMounts())?.device;
  const inode = statOf(path)?.ino;
  const found = new Map<number, number>();
  for (const { pid, file } of descriptorFiles()) {
    const locks = parseLocks(readOrEmpty(file)).filter(
      (lock) => lock.kind === 'OFDLCK' && lock.device === device && lock.inode === inode,
    ).length;
    if (locks > 0) found.set(pid, (found.get(pid) ?? 0) + locks);
  }
  return [...found].map(([pid, locks]) => ({ pid, locks })).filter(({ locks }) => locks >= least);
}

function descriptorFiles(): { pid: number; file: string }[] {
  return processIds().flatMap((pid) =>
    namesIn(`/proc/${pid}/fdinfo`).map((number) => ({ pid, file: `/proc/${pid}/fdinfo/${number}` })),
  );
}
