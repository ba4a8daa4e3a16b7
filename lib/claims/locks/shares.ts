// The shares of a GPU's memory, and the processes of their jobs.
import {
  computePids,
  describeListedProcess,
  type GPU,
  MAX_UNEXPLAINED_BYTES,
  memoryOf,
  SHARE_UNIT_BYTES,
  type Share,
  type Sharing,
} from '../../gpus/index.ts';
import { formatBytes, lineage, readProcessStat } from '../../platform/index.ts';
import { type ShareSize, unitsOf } from '../rules/index.ts';
import type { ShareDemand } from './lease.ts';
import { capacityOf, type HeldShare, readDivision } from './lease-file.ts';
import type { LockDirectory } from './lock-directory.ts';
import type { ParentJob } from './parent-job.ts';
import { leaseInfo } from './record.ts';

const MAX_ANCESTORS = 100;

/**
 * How the memory of a GPU is shared; undefined: there are no shares, and none is asked for.
 * @param division the shares that are held @param own those that don't count, as they are the claimant's
 */
export function sharingOf(
  directory: LockDirectory,
  gpu: GPU,
  { job, memory }: { job: Pick<ParentJob, 'epoch'> | null; memory: ShareSize | undefined },
  division = readDivision(directory, { uuid: gpu.uuid, job: job?.epoch ?? null }),
  own: readonly string[] = [],
): Sharing | undefined {
  if (division.taken === 0 && memory === undefined) return undefined;
  const held = division.shares.filter(({ id }) => !own.includes(id));
  const ours = division.shares.filter(({ id }) => own.includes(id));
  const taken = division.taken - ours.reduce((sum, { units }) => sum + units, 0);
  const capacity =
    (job === null ? null : capacityOf(directory, { uuid: gpu.uuid, job: job.epoch })) ?? unitsIn(gpu);
  const users = held.length === 0 ? NO_USERS : usersOf(gpu, held);
  return {
    shares: held.map((share, i) => shareOf(share, users.usedBytes[i] ?? null)),
    taken,
    ...(division.isDamaged ? { isDamaged: true } : {}),
    capacity,
    pids: users.pids,
    wanted: memory === undefined ? null : unitsOf(memory, capacity ?? 0),
  };
}

/** The share that is to be taken of a GPU with room for it. */
export function demandOf({ capacity, wanted }: Sharing, limit: number): ShareDemand | null {
  return capacity === null || wanted === null ? null : { capacity, units: wanted, limit };
}

/** How many shares of this size a GPU has room for, when it has no others. */
export function sharesOf(gpu: GPU, size: ShareSize): number {
  const capacity = unitsIn(gpu) ?? 0;
  return Math.floor(capacity / unitsOf(size, capacity));
}

/** '20 GiB' or '25 %' */
export function formatShare(size: ShareSize): string {
  return 'bytes' in size ? formatBytes(size.bytes) : `${size.percent} %`;
}

/** The units of the memory that programs may use; null: the driver doesn't tell. */
function unitsIn({ memory: { totalBytes, reservedBytes } }: GPU): number | null {
  return totalBytes === null ? null : Math.floor((totalBytes - (reservedBytes ?? 0)) / SHARE_UNIT_BYTES);
}

function shareOf({ units, record }: HeldShare, usedBytes: number | null): Share {
  return { bytes: units * SHARE_UNIT_BYTES, usedBytes, ...leaseInfo(record) };
}

interface Users {
  /** By the index of the share. */
  usedBytes: (number | null)[];
  pids: ReadonlySet<number>;
}

const NO_USERS: Users = { usedBytes: [], pids: new Set() };

/** The processes of the shares' jobs on the GPU. Processes that may be any others count among them, but for no share. */
function usersOf(gpu: GPU, held: readonly HeldShare[]): Users {
  const roots = held.map(({ record }) => rootsOf(record));
  const pids = new Set<number>();
  const usedBytes: (number | null)[] = held.map(() => 0);
  const listed = computePids(gpu);
  let isUntold =
    gpu.processes === null || (listed.length === 0 && (gpu.memory.usedBytes ?? 0) > MAX_UNEXPLAINED_BYTES);
  for (const pid of new Set(listed)) {
    const above = [...lineage(pid, MAX_ANCESTORS)];
    const index = roots.findIndex((each) => above.some((ancestor) => each.has(ancestor)));
    const { alive, name } = describeListedProcess(pid);
    if (index < 0 && (alive === 'alive' ? name !== null : alive === 'dying')) continue;
    pids.add(pid);
    if (index < 0) {
      isUntold = true;
      continue;
    }
    const [before, used] = [usedBytes[index] ?? null, memoryOf(gpu, pid)];
    usedBytes[index] = before === null || used === null ? null : before + used;
  }
  return { usedBytes: isUntold ? held.map(() => null) : usedBytes, pids };
}

/** The processes of which all others of a share's job descend. */
function rootsOf(record: Record<string, unknown> | null): Set<number> {
  const roots = new Set<number>();
  const { pid, keeper } = record ?? {};
  for (const each of [pid, keeper]) if (typeof each === 'number' && each > 1) roots.add(each);
  if (typeof keeper !== 'number') return roots;
  // The placeholder is not the keeper's child, but that of the process which the caller waits for. `gpu-owner hold` is a child of the
  // program that uses the GPU.
  const parent = readProcessStat(keeper)?.parent ?? 0;
  if (parent > 1) roots.add(parent);
  return roots;
}
