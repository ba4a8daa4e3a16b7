// The holders of GPUs, and those who wait for some, as the locks tell: without the driver, which may take seconds to start.

import {
  activeWaiters,
  type ClaimCounts,
  checkDirectory,
  claimCounts,
  type Idle,
  isLocked,
  LockDirectory,
  leaseInfo,
  leaseNames,
  readHolder,
  readIdle,
  readWaiters,
  reservedFor,
} from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import type { LeaseInfo } from '../gpus/index.ts';
import { formatSince, idleText, schema } from '../platform/index.ts';

/** A holder of GPUs of the machine, and these. Claims inside of jobs are left out. */
interface Holder {
  info: LeaseInfo;
  gpus: { index: number; instance?: number | null; uuid: string }[];
  /** Since when all of them do nothing, as far as was written down; null: one works, or it isn't known. */
  idle: Idle | null;
}

/** A request in the wait queue. */
export interface WaitingRequest {
  info: LeaseInfo;
  /** 1 is served first. */
  position: number;
  count: number;
  isSuspended: boolean;
  /** When it stops waiting, in ms since 1970; null: never. */
  waitUntil: number | null;
  /** The holders in its way, in words, with when a GPU is expected back where that is known. */
  blockers: string[];
}

export interface Activity {
  leases: Holder[];
  waiting: WaitingRequest[];
  counts: ClaimCounts;
}

/** So many holders are named. */
const MAX_BLOCKERS = 3;

/**
 * Reads the holders and the wait queue. Without a lock directory, there are none. @throws ERR_INVALID_ARGUMENT,
 * ERR_CONFIGURATION
 */
export function readActivity(lockDirectory: string | undefined): Activity {
  const directory = LockDirectory.find(checkDirectory(lockDirectory, 'lockDirectory'), loadConfiguration());
  if (directory === null)
    return { leases: [], waiting: [], counts: { granted: 0, handedOver: 0, refused: 0 } };
  const holders = new Map<string, Holder>();
  const byGPU = new Map<string, Holder>();
  for (const name of leaseNames(directory)) {
    for (const descriptor of directory.filesNamed(name)) {
      const record = isLocked(descriptor) ? readHolder(descriptor) : null;
      if (record === null) continue;
      const key = `${record.generation}`;
      const found = { info: leaseInfo(record), gpus: gpusOf(record) };
      const holder = holders.get(key) ?? { ...found, idle: commonIdle(directory, found) };
      holders.set(key, holder);
      byGPU.set(name.replace(/\.lease$/, ''), holder);
    }
  }
  const waiters = [...readWaiters(directory)];
  const waiting = waiters.map((waiter, i) => {
    const { info, count, isSuspended, waitUntil, uuids, scope } = waiter;
    const taken = new Set(uuids.flatMap((uuid) => byGPU.get(uuid) ?? []));
    const blockers = [...taken].map((holder) => describeHolder(holder, uuids));
    const reserved = reservedFor(uuids, scope, activeWaiters(waiters.slice(0, i)));
    if (uuids.some((uuid) => !byGPU.has(uuid) && reserved.has(uuid)))
      blockers.push('requests ahead in the wait queue come first');
    if (blockers.length > MAX_BLOCKERS) blockers.splice(MAX_BLOCKERS, blockers.length, 'others');
    return { info, position: i + 1, count, isSuspended, waitUntil, blockers };
  });
  return { leases: [...holders.values()], waiting, counts: claimCounts(directory) };
}

/** The shortest of them; null: one isn't idle. */
function commonIdle(directory: LockDirectory, { info, gpus }: Omit<Holder, 'idle'>): Idle | null {
  const all = gpus.map(({ uuid }) => readIdle(directory, uuid));
  let common: Idle | null = null;
  for (const idle of all) {
    if (idle === null) return null;
    if (common === null || (idle.since ?? '') > (common.since ?? '')) common = idle;
  }
  const since = common?.since ?? null;
  const isLater = since !== null && info.since !== null && since < info.since;
  return common !== null && isLater ? { ...common, since: info.since } : common;
}

/** 'bob has GPU 0,1 until 14:05' */
function describeHolder({ info, gpus, idle }: Holder, wanted: readonly string[]): string {
  const labels = gpus
    .filter(({ uuid }) => wanted.includes(uuid))
    .map(({ index, instance }) => (instance == null ? `${index}` : `${index}:${instance}`));
  const until = info.until === undefined ? '' : ` until ${formatSince(info.until)}`;
  const rest = idleText(idle);
  return `${info.user} has GPU ${labels.join(',') || '?'}${until}${rest === null ? '' : `, ${rest}`}`;
}

const GPUS = schema.validOf(
  schema.record({
    index: schema.whole(),
    instance: schema.or(schema.whole(), undefined),
    uuid: schema.matching(/^[A-Za-z0-9/-]{1,96}$/),
  }),
);

/** As the record says: any user may have written it. */
function gpusOf({ gpus }: Record<string, unknown>): Holder['gpus'] {
  return GPUS(gpus, 'gpus');
}
