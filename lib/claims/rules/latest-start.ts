import type { GPUState, LeaseInfo } from '../../gpus/index.ts';
import { TIMEOUTS } from '../../platform/index.ts';
import type { RequestClass } from './order.ts';
import type { GpuRequest } from './turn.ts';

/** A request of which it may be known how long its GPUs will be used. */
export type LimitedRequest = GpuRequest & {
  limitMs: number | null;
  /** null: its record is damaged. Missing: normal. */
  tag?: { class: RequestClass } | null;
  /** The epochs of leases that are to give way to it; missing: none. */
  preempts?: readonly number[];
};

/** A GPU and its present use. */
export interface GPUUse {
  uuid: string;
  state: GPUState;
  lease: LeaseInfo | null;
  /** In place of what the lease says, in ms since 1970. */
  leasedUntil?: number;
}

/** GPUs that several requests want, all of them or none. */
interface Pool {
  uuids: ReadonlySet<string>;
  /** When each GPU is free at the latest, in ms since 1970, ascending. */
  times: number[];
  /** Whether other requests want some of these GPUs and others. */
  isMixed: boolean;
}

/** When each GPU is free at the latest, for `withKeptSets`. @param now as `Date.now()` */
export function freeTimes(gpus: readonly GPUUse[], now: number): (uuid: string) => number {
  const times = new Map(
    gpus.map((gpu) => {
      const isFree = gpu.lease === null && !['shared', 'busy', 'unavailable'].includes(gpu.state);
      return [gpu.uuid, isFree ? 0 : latestEnd({ ...gpu, state: 'leased' }, now)];
    }),
  );
  return (uuid) => times.get(uuid) ?? Number.POSITIVE_INFINITY;
}

/**
 * When each request gets its GPUs at the latest, if everybody keeps their time limits; Infinity: that can't be told. In ms since 1970.
 *
 * A request that is served earlier than foretold may choose other GPUs. So requests ahead must want the same GPUs, or none of
 * them: then it doesn't matter which they choose.
 * @param requests in the order in which they are served; for connected GPUs, with the set that is kept @param now as `Date.now()`
 */
export function latestStarts(
  requests: readonly LimitedRequest[],
  gpus: readonly GPUUse[],
  now: number,
): number[] {
  const pools = new Map<string, Pool>();
  return requests.map(({ count, uuids, sets, scope, limitMs }) => {
    // Only a job knows how its GPUs are used inside of it.
    if (scope !== null) return Number.POSITIVE_INFINITY;
    const key = uuids.toSorted().join();
    const pool = pools.get(key) ?? newPool(uuids, [...pools.values()], gpus, now);
    pools.set(key, pool);
    const start = pool.times[count - 1] ?? Number.POSITIVE_INFINITY;
    const end = start + (limitMs ?? Number.POSITIVE_INFINITY) + TIMEOUTS.grace;
    pool.times = ascending(pool.times.map((time, i) => (i < count ? end : time)));
    const isKnown = !pool.isMixed && start > now;
    // It may start earlier, in another set.
    if (sets !== undefined)
      pools.set(`${key} or another`, newPool(sets.flat(), [...pools.values()], gpus, now));
    // One that could have its GPUs, and waits nevertheless, waits for something that isn't a lease.
    return isKnown ? start : Number.POSITIVE_INFINITY;
  });
}

function newPool(
  wanted: readonly string[],
  others: readonly Pool[],
  gpus: readonly GPUUse[],
  now: number,
): Pool {
  const uuids = new Set(wanted);
  const times = gpus.filter(({ uuid }) => uuids.has(uuid)).map((gpu) => latestEnd(gpu, now));
  const mixed = others.filter((other) => wanted.some((uuid) => other.uuids.has(uuid)));
  for (const other of mixed) other.isMixed = true;
  return { uuids, times: ascending(times), isMixed: mixed.length > 0 };
}

function ascending(times: number[]): number[] {
  return times.sort((a, b) => a - b);
}

/** When a GPU is free at the latest. */
function latestEnd({ state, lease, leasedUntil }: GPUUse, now: number): number {
  if (leasedUntil !== undefined) return leasedUntil + TIMEOUTS.grace;
  if (state === 'free') return now;
  const end = Date.parse(lease?.until ?? '') + TIMEOUTS.grace;
  return state === 'leased' && end > now ? end : Number.POSITIVE_INFINITY;
}
