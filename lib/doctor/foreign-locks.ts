import { basename } from 'node:path';
import {
  FIRST_TENURE,
  findUnexplained,
  findUnexplainedDecision,
  isLocked,
  LEASE,
  Line,
  type LockDirectory,
  leaseInfo,
  MOST_GENERATIONS,
  readHolder,
  type UnexplainedLock,
} from '../claims/index.ts';
import { EXCLUSIVE, native, OFD } from '../native.ts';
import {
  describeOwner,
  type LockOwner,
  listWords,
  lockedFiles,
  ownersOf,
  readLink,
} from '../platform/index.ts';
import { namesIn } from './files.ts';
import type { Report } from './finding.ts';

/** Longer than a claim takes to write who it is, in ms; the decision lock may change hands meanwhile. */
const RECORDING = 250;
/** Behind all bytes that claims lock in any file, but those of the wait queue. */
const NOBODYS = FIRST_TENURE + 2 * MOST_GENERATIONS;
const QUEUE = 'line.lock';
const PATIENCE = 2_000; // ms

/**
 * Locks that programs other than gpu-owner have on lock files, and leases whose record names somebody else: anybody may lock and write
 * these. Whose a lock is, root sees, and others of their own processes and of POSIX locks.
 */
export function reportForeignLocks(report: Report, directory: LockDirectory): void {
  report.step('looking for locks that no claim has');
  const before = findAll(directory);
  if (before.size > 0) {
    native().processSleep(RECORDING);
    const after = findAll(directory);
    for (const [path, { owners, effect }] of after) {
      // A claim whose record can't be written is told of with its file.
      if (before.has(path) && !owners.some(({ isClaim }) => isClaim))
        report.add('foreign-lock', whatIsLocked(path, owners, effect), remedyFor(path, owners));
    }
  }
  const files = lockedFiles(PATIENCE).filter(({ pid }) => isOurNamespace(pid));
  reportForged(report, directory, files);
  reportForgedPlaces(report, directory, files);
}

type LockedFiles = ReturnType<typeof lockedFiles>;
type Found = UnexplainedLock & { effect: string };

function findAll(directory: LockDirectory): Map<string, Found> {
  const found = new Map<string, Found>();
  const note = (lock: UnexplainedLock | null, effect: string) => {
    if (lock !== null) found.set(lock.path, { ...lock, effect });
  };
  for (const name of leaseNames(directory)) {
    const uuid = name.replace(/\..*$/, '');
    note(findUnexplained(directory, { uuid }), `${uuid} can't be claimed until it lets go`);
  }
  note(
    findUnexplainedDecision(directory),
    'claims decide without it, after a wait of up to 2 s, and so in no order',
  );
  for (const descriptor of directory.filesNamed(QUEUE, [directory.path])) {
    if (native().lockProbe(descriptor, OFD, EXCLUSIVE, NOBODYS, 1) < 0) continue;
    const lock = { path: `${directory.path}/${QUEUE}`, owners: ownersOf(descriptor, NOBODYS) };
    note(lock, 'nobody can join the wait queue until it lets go, so waiters are served in no order');
  }
  return found;
}

function leaseNames(directory: LockDirectory): string[] {
  const names = directory.all.flatMap((path) => namesIn(path).filter((name) => name.endsWith('.lease')));
  return [...new Set(names)];
}

function whatIsLocked(path: string, owners: readonly LockOwner[], effect: string): string {
  const who =
    owners.length === 0
      ? "a program that isn't visible here, which is no claim of gpu-owner or can't write who it is"
      : `${listWords(owners.map(describeOwner))}, which ${owners.length === 1 ? 'is' : 'are'} no claim of gpu-owner`;
  return `${path} is locked by ${who}: ${effect}.`;
}

function remedyFor(path: string, owners: readonly LockOwner[]): string {
  if (owners.length === 0)
    return `As root, \`fuser -v ${path}\` shows who has it open, and \`gpu-owner doctor\` who locks it.`;
  const pids = owners.map(({ pid }) => pid).join(' ');
  return `Have it ended, by its user or as root: \`kill ${pids}\`. \`fuser -v ${path}\` shows who has the file open.`;
}

/** Leases whose record names a user to whom none of the processes belongs that have the lock. */
function reportForged(report: Report, directory: LockDirectory, files: LockedFiles): void {
  for (const name of leaseNames(directory)) {
    for (const descriptor of directory.filesNamed(name)) {
      const record = isLocked(descriptor) ? readHolder(descriptor) : null;
      const { uid, user, pid } = leaseInfo(record);
      if (record === null || uid === null) continue;
      const owners = ownersOf(descriptor, LEASE, files);
      if (owners.length === 0 || owners.some((owner) => owner.uid === null || owner.uid === uid)) continue;
      const path = readLink(`/proc/self/fd/${descriptor}`) ?? name;
      report.add(
        'foreign-lock',
        `${basename(path)} says that ${user} (pid ${pid ?? '?'}) holds the lease, but ${listWords(owners.map(describeOwner))} ${owners.length === 1 ? 'has' : 'have'} it locked: the record is forged, or was made by a program that runs as somebody else.`,
        remedyFor(path, owners),
      );
    }
  }
}

/** Places in the wait queue whose record names a user to whom none of the processes belongs that have them. */
function reportForgedPlaces(report: Report, directory: LockDirectory, files: LockedFiles): void {
  const line = Line.open(directory);
  if (line === null) return;
  try {
    for (const { place, info } of line.waiters(line.places())) {
      const owners = ownersOf(line.descriptor, place, files);
      if (owners.length === 0 || owners.some(({ uid }) => uid === null || uid === info.uid)) continue;
      const path = `${directory.path}/${QUEUE}`;
      report.add(
        'foreign-lock',
        `${path} says that ${info.user} (pid ${info.pid ?? '?'}) waits there, but ${listWords(owners.map(describeOwner))} ${owners.length === 1 ? 'has' : 'have'} that place locked: the record is forged. Whoever doesn't take what it could have is passed over after some seconds.`,
        remedyFor(path, owners),
      );
    }
  } finally {
    line.close();
  }
}

/** Users of containers may have other numbers inside. */
function isOurNamespace(pid: number): boolean {
  const own = readLink('/proc/self/ns/user');
  return own !== null && readLink(`/proc/${pid}/ns/user`) === own;
}
