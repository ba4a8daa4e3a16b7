// The users who hold GPUs of the machine, and how many. Records may be anybody's, so whose a lease is follows from the kernel's locks, and from the
// owner of the file that only the lease's holder can have made.
import { errno, native, OFD, SHARED } from '../../native.ts';
import { type FileStatus, pathIn, statusBehind, statusOf } from '../../platform/index.ts';
import {
  FIRST_EPOCH,
  FIRST_UNIT,
  gpuOfShare,
  isLocked,
  jobName,
  type LockDirectory,
  leaseNames,
  MAX_EPOCHS,
  PREEMPTIBLE_MODE,
  readSize,
} from '../locks/index.ts';

/** So many epochs of one file are looked at: other programs may have locked such bytes, too. */
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
  const owners = new Map<number, number | null>();
  for (const name of leaseNames(directory)) {
    const uuid = name.replace(/\.lease$/, '');
    const gpu = gpuOfShare(uuid) ?? uuid;
    const whole = partOf(gpu) ?? (gpu.startsWith('MIG-') ? INSTANCE_PART : 1);
    for (const descriptor of directory.filesNamed(name)) {
      // Holders of instances and shares have epochs in the file of the GPU as well, but not the lease.
      if (!isLocked(descriptor, SHARED)) continue;
      const size = gpu === uuid ? null : readSize(descriptor);
      const part = size === null ? whole : (whole * size.units) / size.capacity;
      const users = new Set<number>();
      for (const epoch of lockedEpochs(descriptor)) {
        if (!owners.has(epoch)) owners.set(epoch, ownerOfJob(directory, epoch));
        const uid = owners.get(epoch) ?? null;
        if (uid !== null) users.add(uid);
      }
      for (const uid of users) {
        const { gpus, uuids } = holdings.get(uid) ?? { gpus: 0, uuids: [] };
        holdings.set(uid, { gpus: gpus + part, uuids: [...uuids, uuid] });
      }
    }
  }
  return holdings;
}

/** The holdings, read when they are first asked for. */
export function holdingsWhenAsked(directory: LockDirectory | null): () => Holdings {
  let holdings: Holdings | undefined;
  return () => (holdings ??= directory === null ? new Map() : readHoldings(directory));
}

function* lockedEpochs(descriptor: number): Generator<number> {
  let from = FIRST_EPOCH;
  for (let i = 0; i < MAX_LOCKED_EPOCHS; i++) {
    const byte = native().lockProbe(descriptor, OFD, SHARED, from, FIRST_UNIT - from);
    if (byte < from || byte >= FIRST_EPOCH + MAX_EPOCHS) return;
    yield byte - FIRST_EPOCH;
    from = byte + 1;
  }
}

/** The user of a job's file; null: there is none, or the lease is preemptible, which counts for no user. */
function countedUser(status: FileStatus | null): number | null {
  return status === null || (status.mode & 0o777) === PREEMPTIBLE_MODE ? null : status.uid;
}

/** The user who has made the file of a job; null: there is none, or it was left behind. */
function ownerOfJob(directory: LockDirectory, epoch: number): number | null {
  const name = jobName(epoch);
  for (const path of directory.all) {
    const descriptor = directory.openForProbe(name, path);
    if (descriptor === -errno.ENOENT) continue;
    // Files of others can't be opened, but seen.
    if (descriptor < 0) return countedUser(statusOf(pathIn(path, name)));
    try {
      if (isLocked(descriptor)) return countedUser(statusBehind(descriptor));
    } finally {
      native().fileClose(descriptor);
    }
  }
  return null;
}
