import { GPUOwnerError } from '../../errors.ts';
import type { LeaseInfo } from '../../gpus/index.ts';
import { EXCLUSIVE, native, OFD, SHARED } from '../../native.ts';
import {
  type KernelLock,
  type LockOwner,
  type OpenFile,
  ownerOf,
  ownersOf,
  readLink,
  schema,
  showValue,
  statusBehind,
} from '../../platform/index.ts';
import type { LockDirectory } from './lock-directory.ts';
import { leaseInfo, MAX_EPOCHS, readRecord } from './record.ts';
import {
  countUnits,
  FIRST_UNIT,
  isNestedShare,
  MAX_UNITS,
  readSize,
  type ShareParts,
  shareId,
  shareNumbers,
} from './share-file.ts';

// Offsets in a lease file, of locks, not of data. Byte 0 is the lease. Byte 1 + epoch is locked as long: a process that wants
// to know when the lease ends waits there, and so is never in the way of the next claimant.
export const LEASE = 0;
export const FIRST_EPOCH = 1;

/**
 * How deep claims inside jobs can be nested. Each level has a file of its own per GPU, with the same layout: level 0 is the
 * machine's, level 1 is for claims inside a job that holds level 0, and so on. On no level has a GPU two holders.
 */
export const MAX_DEPTH = 64;

/** @throws ERR_DRIVER for what is no UUID: it becomes a part of a path */
export function leaseName(reported: string, depth = 0): string {
  // Drivers before R470 call an instance MIG-GPU-<uuid>/<GPU instance>/<compute instance>.
  const uuid = reported.startsWith('MIG-GPU-') ? reported.replaceAll('/', '-') : reported;
  if (!isLeaseName(uuid)) {
    throw new GPUOwnerError(
      'ERR_DRIVER',
      `the driver reports an invalid UUID: ${showValue(reported)}. Compare with \`nvidia-smi -L\`, and reinstall the driver.`,
    );
  }
  return depth === 0 ? `${uuid}.lease` : `${uuid}.nested-${depth}`;
}

/** The lease files of whole GPUs, MIG instances and shares, here and in the other directories where leases may be held. */
export function leaseNames(directory: LockDirectory): string[] {
  const names = directory.all.flatMap((path) =>
    directory
      .namesIn(path)
      .filter((name) => name.endsWith('.lease') && !isNestedShare(name))
      .sort(),
  );
  return [...new Set(names)];
}

function isLeaseName(uuid: string): boolean {
  return /^[A-Za-z0-9-]{1,200}$/.test(uuid);
}

interface LeaseFile {
  depth: number;
  /** Closed when the caller goes on. */
  descriptor: number;
}

/**
 * The lease files of a GPU from a level on, outermost first. A level without a file has never had a holder, and so none
 * below it had.
 */
function* leaseFiles(directory: LockDirectory, uuid: string, from: number): Generator<LeaseFile> {
  for (let depth = from; depth <= MAX_DEPTH; depth++) {
    let exists = false;
    for (const descriptor of directory.filesNamed(leaseName(uuid, depth))) {
      exists = true;
      yield { depth, descriptor };
    }
    if (!exists) return;
  }
}

/** Whether a lock of this mode would be refused: EXCLUSIVE by any other lock, SHARED by the lease itself only. Takes nothing. */
export function isLocked(descriptor: number, mode = EXCLUSIVE): boolean {
  return native().lockProbe(descriptor, OFD, mode, LEASE, 1) >= 0;
}

/** Whether this epoch of the lease lasts. Takes nothing. */
function isEpochLocked(descriptor: number, epoch: number): boolean {
  const byte = FIRST_EPOCH + epoch;
  // A longer lock is another program's.
  return native().lockProbe(descriptor, OFD, SHARED, byte, 1) === byte;
}

// The maker of a lease file can remove it while another user has it locked, and the next claim would make another one. So a holder
// has a read lock in the lock directory itself as well, on a byte that stands for the file's name.

/** The byte of a lease file's name. A holder of a part has the byte after it. */
function byteOfName(name: string): number {
  let [high, low] = [0x9e3779b9, 0x85ebca6b];
  for (let i = 0; i < name.length; i++) {
    high = Math.imul(high ^ name.charCodeAt(i), 0x01000193);
    low = Math.imul(low ^ name.charCodeAt(i), 0x5bd1e995);
  }
  return 2 * ((high >>> 7) * 2 ** 25 + (low >>> 7));
}

/**
 * Locks the byte of a name, and looks for other holders. @param mode as that of the lease
 * @param itself a descriptor of the lock directory @returns whether another open file has a lock that excludes this one
 */
export function lockName(itself: number, name: string, mode: number): boolean {
  native().lockTry(itself, OFD, SHARED, byteOfName(name) + (mode === EXCLUSIVE ? 0 : 1), 1);
  return isByteLocked(itself, name, mode);
}

/** Whether another open file has locked it. Any user can lock the whole directory: that keeps all GPUs from being claimed. */
function isByteLocked(itself: number, name: string, mode: number): boolean {
  return lockOnName(itself, name, mode) >= 0;
}

/** Where the lock begins that another open file has on it; negative: there is none. */
function lockOnName(itself: number, name: string, mode: number): number {
  return native().lockProbe(itself, OFD, EXCLUSIVE, byteOfName(name), mode === EXCLUSIVE ? 2 : 1);
}

/** Whether a lease with this name is held, of the file that has the name or of one that was removed. */
export function isNameLocked(
  directory: LockDirectory,
  name: string,
  mode = EXCLUSIVE,
  paths = directory.all,
): boolean {
  return paths.some((path) => {
    const itself = directory.itself(path);
    return itself >= 0 && isByteLocked(itself, name, mode);
  });
}

/**
 * The record of the present holder; null: it has written none, and what stands there is of an earlier one. So it is for a moment with each
 * lease, and as long as it lasts where another program has the lock, or the file may not be written to.
 */
export function readHolder(descriptor: number): Record<string, unknown> | null {
  const record = readRecord(descriptor);
  const epoch = schema.readAs(schema.whole(MAX_EPOCHS), record?.generation);
  return epoch !== null && isEpochLocked(descriptor, epoch) ? record : null;
}

/** Whether no other epoch is locked: any user can lock any byte, but can't hide the byte of the lease's holder. */
function isOnlyEpoch(descriptor: number, epoch: number): boolean {
  const byte = FIRST_EPOCH + epoch;
  const isFree = (start: number, length: number) =>
    native().lockProbe(descriptor, OFD, SHARED, start, length) < 0;
  return (
    isEpochLocked(descriptor, epoch) &&
    (epoch === 0 || isFree(FIRST_EPOCH, epoch)) &&
    isFree(byte + 1, FIRST_UNIT - byte - 1)
  );
}

/** Which lease. */
export interface LeaseKey {
  uuid: string;
  /** The UUID of a MIG instance's GPU. A claim that holds that as a whole holds the instance. */
  parent?: string | null;
  /** The lease epoch of the job inside of which it is asked for; null: on the machine. */
  job?: number | null;
}

/** The holder of a lease. */
export interface Holder {
  info: LeaseInfo;
  /** Whether only a MIG instance or a share is held. */
  isPart: boolean;
}

/**
 * The holder of the lease, in this machine's directory or one that may be in use as well; null: it has none. A GPU of which
 * only MIG instances or shares are leased is leased, too: as a whole it can't be had.
 */
export function probeLease(directory: LockDirectory, key: LeaseKey): Holder | null {
  const { parent = null, job = null } = key;
  const holders: Holder[] = [];
  const { uuid, depth } = levelOrTop(directory, key);
  for (const file of leaseFiles(directory, uuid, depth)) {
    const holder = holderOf(directory, uuid, file);
    if (holder !== null) holders.push(holder);
  }
  if (holders.length === 0) {
    const name = leaseName(uuid, depth);
    // The holder came after the look at the file, or the file was removed. Beside a share there may be room.
    if (isNameLocked(directory, name)) {
      return { info: holderInfo(null), isPart: !isNameLocked(directory, name, SHARED) };
    }
    return parent === null || job !== null ? null : probeWhole(directory, parent);
  }
  return holders.reduceRight<Holder | null>(
    (nested, { info, isPart }) => ({
      info: nested === null ? info : { ...info, nested: nested.info },
      isPart,
    }),
    null,
  );
}

function holderOf(directory: LockDirectory, uuid: string, file: LeaseFile): Holder | null {
  const { descriptor } = file;
  if (isLocked(descriptor, SHARED)) return { info: holderInfo(readHolder(descriptor)), isPart: false };
  // The record in the file is not of those who hold instances or shares.
  return isLocked(descriptor)
    ? { info: holderInfo(recordOfPart(directory, uuid, file)), isPart: true }
    : null;
}

function holderInfo(record: Record<string, unknown> | null): LeaseInfo {
  return record === null ? { ...leaseInfo(null), stranger: true } : leaseInfo(record);
}

/** As {@link probeLease} on the machine, but who holds MIG instances or shares of the GPU doesn't count. */
export function probeWhole(directory: LockDirectory, uuid: string): Holder | null {
  for (const file of leaseFiles(directory, uuid, 0)) {
    const holder = holderOfWhole(directory, uuid, file);
    if (holder !== null) return holder;
  }
  return isNameLocked(directory, leaseName(uuid), SHARED) ? { info: holderInfo(null), isPart: false } : null;
}

function holderOfWhole(directory: LockDirectory, uuid: string, file: LeaseFile): Holder | null {
  return file.depth > 0 || isLocked(file.descriptor, SHARED) ? holderOf(directory, uuid, file) : null;
}

/** The processes that have a lock without a record of its holder. */
export interface LockOwners {
  path: string;
  /** As far as this user can see them. */
  owners: readonly LockOwner[];
  /** The lease file was removed, and the path is that of the lock directory. */
  isRemoved?: true;
}

/** The first such lock that keeps this lease from being taken. Looks at all processes: for messages. */
export function findUnexplained(directory: LockDirectory, key: LeaseKey): LockOwners | null {
  const { parent = null, job = null } = key;
  const { uuid, depth } = levelOrTop(directory, key);
  return (
    unexplainedIn(directory, uuid, depth, holderOf) ??
    (parent === null || job !== null ? null : unexplainedIn(directory, parent, 0, holderOfWhole))
  );
}

function unexplainedIn(
  directory: LockDirectory,
  uuid: string,
  from: number,
  holderIn: typeof holderOf,
): LockOwners | null {
  let isNamed = false;
  for (const file of leaseFiles(directory, uuid, from)) {
    const holder = holderIn(directory, uuid, file);
    if (holder?.info.stranger === true) return unexplained(file);
    isNamed ||= holder !== null;
  }
  const mode = holderIn === holderOf ? EXCLUSIVE : SHARED;
  return isNamed ? null : removedLease(directory, leaseName(uuid, from), mode);
}

function removedLease(directory: LockDirectory, name: string, mode: number): LockOwners | null {
  for (const path of directory.all) {
    const itself = directory.itself(path);
    const start = itself < 0 ? -1 : lockOnName(itself, name, mode);
    if (start < 0) continue;
    const byte = byteOfName(name);
    const owners = ownersOf(itself, Math.max(start, byte));
    // A lock of more than the name's bytes is no lease's.
    return start < byte ? { path, owners } : { path, owners, isRemoved: true };
  }
  return null;
}

/**
 * The processes that hold a GPU or an instance of it, by the kernel's locks, not by records; none: that is unknown, or none does. A lease
 * whose file was removed or renamed is known by the lock on the file's name. Any user can make such locks.
 * @param files where to look
 */
export function leaseOwners(
  directory: LockDirectory,
  { uuid, parent = null }: LeaseKey,
  files: readonly OpenFile[],
): LockOwner[] {
  const name = leaseName(uuid);
  const owners: LockOwner[] = [];
  for (const descriptor of directory.filesNamed(name)) owners.push(...ownersOf(descriptor, LEASE, files));
  const byte = byteOfName(name);
  const directories = directory.all.map((path) => statusBehind(directory.itself(path))?.inode);
  const hasName = ({ inode, start, last }: KernelLock) =>
    directories.includes(inode) && start >= byte && last <= byte + 1;
  const named = new Set(files.filter(({ locks }) => locks.some(hasName)).map(({ pid }) => pid));
  for (const { pid, locks } of files) {
    const isLease = named.has(pid) && locks.some(({ start, last }) => start === LEASE && last === LEASE);
    if (isLease && !owners.some((owner) => owner.pid === pid)) owners.push(ownerOf(pid, true));
  }
  return owners.length > 0 || parent === null ? owners : leaseOwners(directory, { uuid: parent }, files);
}

function unexplained({ descriptor }: LeaseFile): LockOwners {
  return {
    path: readLink(`/proc/self/fd/${descriptor}`) ?? '',
    owners: ownersOf(descriptor, LEASE),
  };
}

/** As {@link probeLease}, for those who don't care who it is. */
export function isLeased(directory: LockDirectory, key: LeaseKey): boolean {
  const { uuid, depth } = levelOrTop(directory, key);
  return isHeldFrom(directory, uuid, depth);
}

export function isHeldFrom(directory: LockDirectory, uuid: string, depth: number): boolean {
  for (const { descriptor } of leaseFiles(directory, uuid, depth)) if (isLocked(descriptor)) return true;
  return isNameLocked(directory, leaseName(uuid, depth));
}

/** Where a lease is taken: the file, and the files of what it is a part of. */
export interface Level {
  /** The GPU's, or the name of the share of it that the surrounding job has. */
  uuid: string;
  depth: number;
  enclosing: readonly string[];
}

/** On the machine, or within a job; null: the job doesn't hold the GPU. */
export function levelOf(
  directory: LockDirectory,
  { uuid, parent = null, job = null }: LeaseKey,
): Level | null {
  if (job === null) return { uuid, depth: 0, enclosing: parent === null ? [] : [leaseName(parent)] };
  const held = findHeld(directory, uuid, job);
  if (held === null || held.depth === MAX_DEPTH) return null;
  return { uuid: held.uuid, depth: held.depth + 1, enclosing: held.enclosing };
}

/** As {@link levelOf}, but the machine's where the job doesn't hold the GPU. */
export function levelOrTop(directory: LockDirectory, key: LeaseKey): Pick<Level, 'uuid' | 'depth'> {
  return levelOf(directory, key) ?? { uuid: key.uuid, depth: 0 };
}

/**
 * On which level an epoch of the GPU's lease lasts, or of a share of it, and what its holder wrote; null: it doesn't. Not certain: another
 * process has locked such a byte, too, and the epoch may be that one's.
 */
export function findHeld(
  directory: LockDirectory,
  uuid: string,
  epoch: number,
): (Level & { isCertain: boolean; record: Record<string, unknown> | null }) | null {
  for (const { depth, descriptor } of leaseFiles(directory, uuid, 0)) {
    if (!isEpochLocked(descriptor, epoch)) continue;
    if (isLocked(descriptor, SHARED)) {
      const isCertain = isOnlyEpoch(descriptor, epoch);
      return { uuid, depth, enclosing: [], isCertain, record: readRecord(descriptor) };
    }
    // The holder of a MIG instance has an epoch in its GPU's file as well, but not the lease.
    for (const number of shareNumbers(descriptor) ?? []) {
      const held = findHeld(directory, shareId(uuid, depth, number), epoch);
      if (held !== null) return { ...held, enclosing: [leaseName(uuid, depth), ...held.enclosing] };
    }
  }
  return null;
}

/** A share that is held. */
export interface HeldShare extends ShareParts {
  /** In place of the UUID in the names of its files. */
  id: string;
  /** null: its holder has written none. */
  record: Record<string, unknown> | null;
}

/** The units of a GPU's memory that are taken, and the shares that have them. */
export interface Division {
  taken: number;
  shares: readonly HeldShare[];
  /** Another program has locked more of the file than shares do: nothing is left. */
  isDamaged: boolean;
}

export const UNDIVIDED: Division = { taken: 0, shares: [], isDamaged: false };

/** The shares of a GPU, or of what the job has of it. */
export function readDivision(directory: LockDirectory, key: LeaseKey): Division {
  const level = levelOf(directory, key);
  if (level === null) return UNDIVIDED;
  const { uuid, depth } = level;
  let taken = 0;
  let isDamaged = false;
  const shares: HeldShare[] = [];
  for (const path of directory.all) {
    for (const descriptor of directory.filesNamed(leaseName(uuid, depth), [path])) {
      const numbers = shareNumbers(descriptor);
      const units = numbers?.length === 0 ? 0 : numbers && countUnits(descriptor);
      taken += units ?? MAX_UNITS;
      isDamaged ||= units === null;
      for (const number of units === null ? [] : (numbers ?? [])) {
        const id = shareId(uuid, depth, number);
        for (const own of directory.filesNamed(leaseName(id), [path])) {
          const size = isLocked(own, SHARED) ? readSize(own) : null;
          if (size !== null) shares.push({ id, ...size, record: readHolder(own) });
        }
      }
    }
  }
  return taken === 0 ? UNDIVIDED : { taken, shares, isDamaged };
}

/** The units of what a job has of a GPU, if that is a share; null: it has all of it. */
export function capacityOf(directory: LockDirectory, key: LeaseKey): number | null {
  const level = levelOf(directory, key);
  if (level === null || level.uuid === key.uuid) return null;
  for (const descriptor of directory.filesNamed(leaseName(level.uuid)))
    return readSize(descriptor)?.units ?? null;
  return null;
}

/** Whether instances of a GPU are leased. */
export function hasLeasedInstance(directory: LockDirectory, uuid: string): boolean {
  return recordOfInstance(directory, uuid) !== null;
}

/**
 * Whether an epoch of the GPU's lease on the machine still lasts, or may: a record can be read while it is being written. For
 * numbers that any user may have written.
 */
export function isEpochHeld(directory: LockDirectory, uuid: string, epoch: number): boolean {
  if (!isLeaseName(uuid) || !Number.isSafeInteger(epoch)) return false;
  let isNamed = false;
  for (const descriptor of directory.filesNamed(leaseName(uuid))) {
    if (!isLocked(descriptor)) continue;
    isNamed = true;
    const present = readRecord(descriptor)?.generation;
    if (present === epoch || typeof present !== 'number') return true;
  }
  return !isNamed && isNameLocked(directory, leaseName(uuid));
}

/** The record of a holder of a share of what the file is of, or of an instance of the GPU. */
function recordOfPart(
  directory: LockDirectory,
  uuid: string,
  { depth, descriptor }: LeaseFile,
): Record<string, unknown> | null {
  for (const number of shareNumbers(descriptor) ?? []) {
    for (const own of directory.filesNamed(leaseName(shareId(uuid, depth, number)))) {
      const record = isLocked(own, SHARED) ? readHolder(own) : null;
      if (record !== null) return record;
    }
  }
  return depth === 0 ? recordOfInstance(directory, uuid) : null;
}

const PARENTS = schema.validOf(schema.record({ parent: schema.text }));

/** The record of a holder of an instance of this GPU. The driver needn't know the instance any longer: MIG may be off by now. */
function recordOfInstance(directory: LockDirectory, parent: string): Record<string, unknown> | null {
  for (const path of directory.all) {
    for (const name of directory.namesIn(path)) {
      if (!/^MIG-.*\.lease$/.test(name)) continue;
      for (const descriptor of directory.filesNamed(name, [path])) {
        const record = isLocked(descriptor, SHARED) ? readHolder(descriptor) : null;
        if (PARENTS(record?.gpus, '').some((gpu) => gpu.parent === parent)) return record;
      }
    }
  }
  return null;
}

/** Why this process can't take the lease, even if it isn't held; null: nothing keeps it from that. */
export function whyUntakable(directory: LockDirectory, key: LeaseKey): GPUOwnerError | null {
  const { parent = null, job = null } = key;
  const { uuid, depth } = levelOrTop(directory, key);
  return (
    directory.whyUnusable(leaseName(uuid, depth)) ??
    (parent === null || job !== null ? null : directory.whyUnusable(leaseName(parent)))
  );
}
