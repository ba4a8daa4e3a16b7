// The users who hold GPUs of the machine, and how many. Any user can write records, so the owner of a lease follows from the kernel's locks, and from the
// owner of the file that only the lease's holder can have made.
import { native, OFD, SHARED } from '../../native.ts';
import {
  FIRST_EPOCH,
  FIRST_UNIT,
  gpuOfShare,
  isLocked,
  type JobFile,
  type LockDirectory,
  leaseNames,
  MAX_EPOCHS,
  readAsked,
  readJobFile,
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
  const owners = new Map<number, JobFile | null>();
  let asked: ReturnType<typeof readAsked> | undefined;
  // A preemptible lease counts for no user, unless it has failed to give way.
  const isCounted = ({ graceMs }: JobFile, epoch: number) => {
    if (graceMs === null) return true;
    asked ??= readAsked(directory);
    return asked.get(epoch)?.isOverdue === true;
  };
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
        if (!owners.has(epoch)) owners.set(epoch, readJobFile(directory, epoch));
        const job = owners.get(epoch) ?? null;
        // Shares don't give way.
        if (job !== null && (gpu !== uuid || isCounted(job, epoch))) users.add(job.uid);
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
