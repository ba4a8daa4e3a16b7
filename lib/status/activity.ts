// The holders of GPUs, and those who wait for some, as the locks tell: without the driver, which may take seconds to start.

import {
  activeWaiters,
  checkDirectory,
  gpuOfShare,
  holdingsWhenAsked,
  type Idle,
  isLocked,
  LockDirectory,
  leaseInfo,
  leaseNames,
  readHolder,
  readIdle,
  readWaiters,
  showKeptSets,
} from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import type { LeaseInfo } from '../gpus/index.ts';
import { schema } from '../platform/index.ts';
import type { QueueEntry } from '../shapes/index.ts';
import { RequestsAhead, type WantedGPU, whyWaiting } from './why-waiting.ts';

/** A holder of GPUs of the machine, and these. Claims inside of jobs are left out. */
interface Holder {
  info: LeaseInfo;
  gpus: { index: number; instance?: number | null; uuid: string }[];
  /** Since when all of them do nothing, as far as was written down; null: one works, or it isn't known. */
  idle: Idle | null;
}

/** A request in the wait queue. */
export interface WaitingRequest {
  info: Pick<LeaseInfo, 'user' | 'uid' | 'pid' | 'command' | 'since'> &
    Partial<Pick<QueueEntry, 'job' | 'name' | 'note'>>;
  /** 1 is served first. */
  position: number;
  count: number;
  isSuspended: boolean;
  /** Why it waits, in one sentence. */
  why: string;
}

export interface Activity {
  leases: Holder[];
  waiting: WaitingRequest[];
}

/**
 * Reads the holders and the wait queue. Without a lock directory, there are none.
 * @param queue as the driver was asked for it: it says more, and isn't read again @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export function readActivity(lockDirectory: string | undefined, queue: readonly QueueEntry[] = []): Activity {
  const directory = LockDirectory.find(checkDirectory(lockDirectory, 'lockDirectory'), loadConfiguration());
  if (directory === null) return { leases: [], waiting: [] };
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
      const id = name.replace(/\.lease$/, '');
      byGPU.set(gpuOfShare(id) ?? id, holder);
    }
  }
  const waiting = queue.length > 0 ? queue.map(requestOf) : readRequests(directory, byGPU);
  return { leases: [...holders.values()], waiting };
}

function requestOf(entry: QueueEntry): WaitingRequest {
  const { position, count, stopped, why } = entry;
  return { info: entry, position, count, isSuspended: stopped, why };
}

function readRequests(directory: LockDirectory, byGPU: ReadonlyMap<string, Holder>): WaitingRequest[] {
  const holdings = holdingsWhenAsked(directory);
  const all = [...readWaiters(directory, null, holdings)];
  const uses = [...new Set(all.flatMap(({ uuids }) => uuids))].map((uuid) => {
    const lease = byGPU.get(uuid)?.info ?? null;
    return { uuid, lease, state: lease === null ? ('free' as const) : ('leased' as const) };
  });
  const waiters = showKeptSets(all, uses);
  const ahead = new RequestsAhead();
  return waiters.map((waiter, i) => {
    const { info, count, isSuspended, uuids } = waiter;
    const gpus = uuids.map((uuid): WantedGPU => {
      const holder = byGPU.get(uuid);
      const { index = 0, instance = null } = holder?.gpus.find((gpu) => gpu.uuid === uuid) ?? {};
      const lease = holder?.info ?? null;
      const state = lease === null ? 'unknown' : 'leased';
      return { index, instance, uuid, reason: null, shares: [], booking: null, state, lease };
    });
    const why = whyWaiting(waiter, { ahead, gpus, latestStart: null });
    for (const each of activeWaiters([waiter])) ahead.add(each);
    return { info, position: i + 1, count, isSuspended, why };
  });
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
