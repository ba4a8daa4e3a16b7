// The users who hold GPUs of the machine, and how many. Any user can write records, so the owner of a lease follows from the kernel's locks, and from the
// owner of the file that only the lease's holder can have made. That user can remove the file, and any user can lock more epochs: then only the
// processes that are visible here tell whose a lease is.
import { native, OFD, SHARED } from '../../native.ts';
import {
  groupsOf,
  isRoot,
  lockedFiles,
  machineUid,
  type OpenFile,
  ownersOf,
  sanitize,
} from '../../platform/index.ts';
import {
  FIRST_EPOCH,
  FIRST_UNIT,
  gpuOfShare,
  isLocked,
  type JobFile,
  LEASE,
  type LockDirectory,
  leaseNames,
  MAX_EPOCHS,
  readJobFile,
  readSize,
} from '../locks/index.ts';
import { isAboveLimit, type TogetherLimit } from '../rules/index.ts';

/** Upper bound on locked epochs per file; foreign programs may lock bytes as well. */
const MAX_LOCKED_EPOCHS = 64;
/** A MIG instance counts as this part of a GPU where its size isn't known. */
const INSTANCE_PART = 1 / 7;

/** The GPUs that each user holds, by uid. */
export type Holdings = ReadonlyMap<number, { gpus: number; uuids: readonly string[] }>;

/** @param partOf how much of a GPU a MIG instance is, for instances that are known */
export function readHoldings(
  directory: LockDirectory,
  partOf: (uuid: string) => number | undefined = () => undefined,
): Holdings {
  const holdings = new Map<number, { gpus: number; uuids: string[] }>();
  const owners = new Map<number, JobFile | null>();
  let files: OpenFile[] | undefined;
  for (const name of leaseNames(directory)) {
    const uuid = name.replace(/\.lease$/, '');
    const gpu = gpuOfShare(uuid) ?? uuid;
    const whole = partOf(gpu) ?? (gpu.startsWith('MIG-') ? INSTANCE_PART : 1);
    for (const descriptor of directory.filesNamed(name)) {
      // Holders of instances and shares have epochs in the file of the GPU as well, but not the lease.
      if (!isLocked(descriptor, SHARED)) continue;
      const size = gpu === uuid ? null : readSize(descriptor);
      const part = size === null ? whole : (whole * size.units) / size.capacity;
      const jobs: JobFile[] = [];
      const free = new Set<number>();
      const epochs = [...lockedEpochs(descriptor)];
      for (const epoch of epochs) {
        if (!owners.has(epoch)) owners.set(epoch, readJobFile(directory, epoch));
        const job = owners.get(epoch) ?? null;
        if (job !== null) jobs.push(job);
        // A preemptible lease counts for no user. Shares don't give way.
        if (job?.isPreemptible === true && gpu === uuid) free.add(job.uid);
      }
      if (epochs.length === 0) continue;
      const isProved = epochs.length === 1 && jobs.length === 1;
      if (!isProved) files ??= lockedFiles();
      const holders = isProved ? jobs : ownersOf(descriptor, LEASE, files);
      const users = new Set(
        holders.flatMap(({ uid }) => (uid === null || free.has(uid) ? [] : machineUid(uid))),
      );
      for (const uid of users) {
        const { gpus, uuids } = holdings.get(uid) ?? { gpus: 0, uuids: [] };
        holdings.set(uid, { gpus: gpus + part, uuids: [...uuids, uuid] });
      }
    }
  }
  return holdings;
}

/** What a request asks for, and what its user and the user's groups may have. */
export interface LimitedSize {
  uid: number;
  /** How many GPUs are asked for; MIG instances and shares count by their part. */
  size: number;
  most?: number | null | undefined;
  together?: readonly TogetherLimit[] | undefined;
}

/** A limit that a request has to wait for. Numbers are rounded, for people. */
export interface ReachedLimit {
  /** null: the user's own. */
  group: string | null;
  most: number;
  held: number;
  /** The leases that count. */
  uuids: readonly string[];
}

/** The limit that a request would exceed; null: none. */
export function reachedLimit(
  { uid, size, most, together = [] }: LimitedSize,
  holdings: () => Holdings,
): ReachedLimit | null {
  const limits = [
    ...(most == null || !Number.isFinite(most)
      ? []
      : [{ group: null, most, isCounted: (user: number) => user === uid }]),
    ...together.map(({ group, gid, most }) => ({
      group,
      most,
      isCounted: (user: number) => isMember(user, gid),
    })),
  ];
  for (const { group, most, isCounted } of limits) {
    const counted = [...holdings()].filter(([user]) => isCounted(user)).map(([, held]) => held);
    const held = counted.reduce((sum, { gpus }) => sum + gpus, 0);
    if (isAboveLimit(held + size, most))
      return {
        group,
        most: rounded(most),
        held: rounded(held),
        uuids: counted.flatMap(({ uuids }) => uuids),
      };
  }
  return null;
}

function rounded(gpus: number): number {
  return Math.round(gpus * 100) / 100;
}

/** Whether the GPUs of a user count for a group. Root isn't limited. In a user namespace, users that it doesn't know are in each group. */
function isMember(uid: number, gid: number): boolean {
  return uid !== 0 && (isRoot(uid) || groupsOf(uid).has(gid));
}

/** "at its user's limit (bob holds 2 of 2)" @param user the request's */
export function describeReached({ group, most, held }: ReachedLimit, user: string): string {
  return group === null
    ? `at its user's limit (${user} holds ${held} of ${most})`
    : `at its group's limit (${sanitize(group, 40)} hold ${held} of ${most} together)`;
}

/** The holdings, read when they are first asked for. */
export function holdingsWhenAsked(directory: LockDirectory | null): () => Holdings {
  let holdings: Holdings | undefined;
  return () => (holdings ??= directory === null ? new Map() : readHoldings(directory));
}

/** The epochs that are locked in a lease file. */
export function* lockedEpochs(descriptor: number): Generator<number> {
  let from = FIRST_EPOCH;
  for (let i = 0; i < MAX_LOCKED_EPOCHS; i++) {
    const byte = native().lockProbe(descriptor, OFD, SHARED, from, FIRST_UNIT - from);
    if (byte < from || byte >= FIRST_EPOCH + MAX_EPOCHS) return;
    yield byte - FIRST_EPOCH;
    from = byte + 1;
  }
}
