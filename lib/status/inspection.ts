import { fstatSync } from 'node:fs';
import {
  FIRST_EPOCH,
  findUnexplained,
  findUnexplainedDecision,
  isLocked,
  LEASE,
  type LockDirectory,
  type LockOwners,
  leaseInfo,
  leaseName,
  leaseNames,
  MAX_EPOCHS,
  readHolder,
  WAIT_QUEUE_FILE,
  WaitQueue,
} from '../claims/index.ts';
import type { GPU } from '../gpus/index.ts';
import { EXCLUSIVE, native, OFD } from '../native.ts';
import { type LockOwner, ownersOf, pathIn, readLink } from '../platform/index.ts';

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
  /** As the record says; any user may have written it. */
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

/** Makes the lease files of GPUs root's, as whom this runs: no user can remove one, and claim what another user has leased. */
export function protectLeaseFiles(directory: LockDirectory, uuids: readonly string[]): void {
  for (const uuid of uuids) directory.makeRoots(leaseName(uuid));
}

/** The file of a lease that lasts. */
interface LeaseFile {
  /** Kept open: so it stays the same file if a user removes or replaces it. */
  descriptor: number;
  identity: string;
  /** The look in which it was first seen to be locked. */
  since: number;
  /** Whether it has the lease's name, in one of the directories. */
  isNamed: boolean;
}

/**
 * The files of leases, for one who must not take another's lease for that of a GPU. Anybody may have made a lease's file, and can
 * remove it while another user has it locked; and any user can lock a file of that name in the other directory.
 */
export class LeaseFiles {
  readonly #files = new Map<string, LeaseFile[]>();
  #look = 0;

  /** Looks which leases last. @param uuids the GPUs and instances that there are now */
  look(directory: Pick<LockDirectory, 'all' | 'openForProbe'>, uuids: readonly string[]): void {
    this.#look++;
    for (const uuid of new Set([...uuids, ...this.#files.keys()])) {
      const files = this.#lasting(uuid);
      for (const path of directory.all) {
        const descriptor = directory.openForProbe(leaseName(uuid), path);
        if (descriptor < 0) continue;
        const { dev, ino } = fstatSync(descriptor);
        const identity = `${dev} ${ino}`;
        const known = files.find((file) => file.identity === identity);
        if (known !== undefined) known.isNamed = true;
        if (known !== undefined || !isLocked(descriptor)) native().fileClose(descriptor);
        else files.push({ descriptor, identity, since: this.#look, isNamed: true });
      }
      if (files.length === 0) this.#files.delete(uuid);
      else this.#files.set(uuid, files);
    }
  }

  #lasting(uuid: string): LeaseFile[] {
    return (this.#files.get(uuid) ?? []).filter((file) => {
      file.isNamed = false;
      if (isLocked(file.descriptor)) return true;
      native().fileClose(file.descriptor);
      return false;
    });
  }

  /** Whether a GPU or an instance is leased, or was when its file was removed. */
  has(uuid: string): boolean {
    return this.#files.has(uuid);
  }

  /**
   * The processes that have leased a GPU, by the kernel's locks, not by records; none if that is unknown, or it isn't
   * leased. A file that is locked later than another counts for nothing, unless the other has lost its name: then both do.
   * @param files as for `ownersOf`
   */
  owners({ uuid, parent }: Pick<GPU, 'uuid' | 'parent'>, files: Parameters<typeof ownersOf>[2]): LockOwner[] {
    const all = this.#files.get(uuid) ?? [];
    const first = Math.min(...all.filter(({ isNamed }) => isNamed).map(({ since }) => since));
    const owners = all
      .filter(({ isNamed, since }) => !isNamed || since === first)
      .flatMap(({ descriptor }) => ownersOf(descriptor, LEASE, files));
    return owners.length > 0 || parent === null ? owners : this.owners({ uuid: parent, parent: null }, files);
  }

  release(): void {
    for (const { descriptor } of [...this.#files.values()].flat()) native().fileClose(descriptor);
    this.#files.clear();
  }
}

/** The wait queue's file, if other programs have locked too much of it for a waiter to join. */
export function findDamagedQueue(directory: LockDirectory): string | null {
  const queue = WaitQueue.open(directory);
  const isDamaged = queue?.isDamaged === true;
  queue?.close();
  return isDamaged ? pathIn(directory.path, WAIT_QUEUE_FILE) : null;
}
