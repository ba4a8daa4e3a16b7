import type { GPU } from '../gpus/index.ts';
import { EXCLUSIVE, native, OFD } from '../native.ts';
import { type LockOwner, ownersOf, pathIn, readLink } from '../platform/index.ts';
import { findUnexplainedDecision } from './acquisition-lock.ts';
import {
  FIRST_EPOCH,
  findUnexplained,
  isLocked,
  LEASE,
  type LockOwners,
  leaseName,
  leaseNames,
  readHolder,
} from './lease-file.ts';
import type { LockDirectory } from './lock-directory.ts';
import { WAIT_QUEUE_FILE } from './queue-file.ts';
import { leaseInfo, MAX_EPOCHS } from './record.ts';
import { WaitQueue } from './wait-queue.ts';

/** Behind all bytes that claims lock in any file, but those of the wait queue. */
const NOBODYS = FIRST_EPOCH + 2 * MAX_EPOCHS;

/** A lock that no claim has, or one that hasn't written who it is, and what it stands in the way of. */
export type UnexplainedLock = LockOwners & ({ of: 'lease'; uuid: string } | { of: 'decision' | 'queue' });

/** Locks without a record of their holder, as with every claim for a moment. */
export function findUnexplainedLocks(directory: LockDirectory): UnexplainedLock[] {
  const found: UnexplainedLock[] = [];
  for (const name of leaseNames(directory)) {
    const uuid = name.replace(/\..*$/, '');
    const lock = findUnexplained(directory, { uuid });
    if (lock !== null) found.push({ ...lock, of: 'lease', uuid });
  }
  const decision = findUnexplainedDecision(directory);
  if (decision !== null) found.push({ ...decision, of: 'decision' });
  for (const descriptor of directory.filesNamed(WAIT_QUEUE_FILE, [directory.path])) {
    if (native().lockProbe(descriptor, OFD, EXCLUSIVE, NOBODYS, 1) < 0) continue;
    const path = pathIn(directory.path, WAIT_QUEUE_FILE);
    found.push({ path, owners: ownersOf(descriptor, NOBODYS), of: 'queue' });
  }
  return found;
}

/** A lock whose record says whose it is. */
interface RecordedLock {
  of: 'lease' | 'queue';
  path: string;
  /** As the record says; anybody may have written it. */
  uid: number | null;
  user: string;
  pid: number | null;
  /** The processes that have the lock, as far as this user can see. */
  owners: readonly LockOwner[];
}

/** Leases and places in the wait queue. @param files as for `ownersOf` */
export function* findRecordedLocks(
  directory: LockDirectory,
  files: Parameters<typeof ownersOf>[2],
): Generator<RecordedLock> {
  for (const name of leaseNames(directory)) {
    for (const descriptor of directory.filesNamed(name)) {
      const record = isLocked(descriptor) ? readHolder(descriptor) : null;
      if (record === null) continue;
      const path = readLink(`/proc/self/fd/${descriptor}`) ?? name;
      yield { of: 'lease', path, ...leaseInfo(record), owners: ownersOf(descriptor, LEASE, files) };
    }
  }
  const queue = WaitQueue.open(directory);
  if (queue === null) return;
  try {
    const path = pathIn(directory.path, WAIT_QUEUE_FILE);
    for (const { slot, info } of queue.waiters(queue.order())) {
      yield { of: 'queue', path, ...info, owners: ownersOf(queue.descriptor, slot, files) };
    }
  } finally {
    queue.close();
  }
}

/**
 * The processes that have leased a GPU, by the kernel's locks, whatever records say; none where that can't be told, or it isn't
 * leased. @param files as for `ownersOf`
 */
export function leaseOwners(
  directory: LockDirectory,
  { uuid, parent }: Pick<GPU, 'uuid' | 'parent'>,
  files: Parameters<typeof ownersOf>[2],
): LockOwner[] {
  const owners: LockOwner[] = [];
  for (const descriptor of directory.filesNamed(leaseName(uuid))) {
    if (isLocked(descriptor)) owners.push(...ownersOf(descriptor, LEASE, files));
  }
  if (owners.length > 0 || parent === null) return owners;
  return leaseOwners(directory, { uuid: parent, parent: null }, files);
}

/** The wait queue's file, if other programs have locked so much of it that no waiter can join it. */
export function findDamagedQueue(directory: LockDirectory): string | null {
  const queue = WaitQueue.open(directory);
  const isDamaged = queue?.isDamaged === true;
  queue?.close();
  return isDamaged ? pathIn(directory.path, WAIT_QUEUE_FILE) : null;
}
