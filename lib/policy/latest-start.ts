import type { GPUState, LeaseInfo } from '../gpus/index.ts';
import { TIMEOUTS } from '../platform/index.ts';
import type { GpuRequest } from './turn.ts';

/** A request of which it may be known how long its GPUs will be used. */
export type LimitedRequest = GpuRequest & { limitMs: number | null };

/** A GPU and its present use. */
export interface GPUUse {
  uuid: string;
  state: GPUState;
  lease: LeaseInfo | null;
  /** In place of what the lease says, in ms since 1970. */
  leasedUntil?: number;
}

/**
 * When a request gets its GPUs at the latest, if everybody keeps their time limits; Infinity: that can't be told. In ms since 1970.
 *
 * A request that is served earlier than foretold may choose other GPUs. So requests ahead must want the same GPUs, or none of
 * them: then it doesn't matter which they choose.
 * @param ahead all requests that may be served before, in order @param now as `Date.now()`
 */
export function latestStart(
  { count, uuids, scope }: GpuRequest,
  ahead: readonly LimitedRequest[],
  gpus: readonly GPUUse[],
  now: number,
): number {
  // Only a job knows how its GPUs are used inside of it.
  if (scope !== null) return Number.POSITIVE_INFINITY;
  const wanted = new Set(uuids);
  const ascending = (times: number[]) => times.sort((a, b) => a - b);
  let times = ascending(gpus.filter(({ uuid }) => wanted.has(uuid)).map((gpu) => latestEnd(gpu, now)));
  for (const request of ahead) {
    if (request.scope !== scope) continue;
    const shared = request.uuids.filter((uuid) => wanted.has(uuid)).length;
    if (shared === 0) continue;
    if (shared < wanted.size || shared < request.uuids.length) return Number.POSITIVE_INFINITY;
    const start = times[request.count - 1] ?? Number.POSITIVE_INFINITY;
    const end = start + (request.limitMs ?? Number.POSITIVE_INFINITY) + TIMEOUTS.grace;
    times = ascending(times.map((time, i) => (i < request.count ? end : time)));
  }
  const start = times[count - 1] ?? Number.POSITIVE_INFINITY;
  // The request could have them, and waits nevertheless: for something that isn't a lease.
  return start > now ? start : Number.POSITIVE_INFINITY;
}

/** When a GPU is free at the latest. */
function latestEnd({ state, lease, leasedUntil }: GPUUse, now: number): number {
  if (leasedUntil !== undefined) return leasedUntil + TIMEOUTS.grace;
  if (state === 'free') return now;
  const end = Date.parse(lease?.until ?? '') + TIMEOUTS.grace;
  return state === 'leased' && end > now ? end : Number.POSITIVE_INFINITY;
}
