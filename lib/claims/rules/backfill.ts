import { TIMEOUTS } from '../../platform/index.ts';
import { type GPUUse, type LimitedRequest, latestStarts } from './latest-start.ts';

/**
 * Whether a request may use these free GPUs before those ahead of it, though they are kept for them: it will have given them
 * back before they are needed. No latest start of another request is put off by it.
 * @param limitMs how long it uses them @param ahead all requests that are served before, in order, as `withKeptSets` has them
 * @param now as `Date.now()`
 */
export function mayBackfill(
  uuids: readonly string[],
  limitMs: number,
  ahead: readonly LimitedRequest[],
  gpus: readonly GPUUse[],
  now: number,
): boolean {
  const end = now + limitMs;
  const starts = latestStarts(ahead, gpus, now);
  const later = latestStarts(ahead, lend(gpus, uuids, end), now);
  return ahead.every((request, i) => {
    if (request.scope !== null || !request.uuids.some((uuid) => uuids.includes(uuid))) return true;
    const start = starts[i] ?? Number.POSITIVE_INFINITY;
    if (Number.isFinite(start)) return (later[i] ?? Number.POSITIVE_INFINITY) <= start;
    // The start of this one isn't known, but it is not before a known one for which all its GPUs are kept.
    return ahead.slice(0, i).some((other, j) => {
      const known = starts[j] ?? Number.POSITIVE_INFINITY;
      const isBehind = Number.isFinite(known) && end + TIMEOUTS.grace <= known;
      return isBehind && request.uuids.every((uuid) => other.uuids.includes(uuid));
    });
  });
}

/**
 * Whether a preemptible request may use free GPUs that are kept for those ahead: each of them waits for a lease of another GPU, and once
 * it has that one, the preemptible lease gives way.
 * @param free all GPUs that are free, or kept for those ahead
 */
export function mayUseMeanwhile(
  uuids: readonly string[],
  free: readonly string[],
  ahead: readonly LimitedRequest[],
): boolean {
  return ahead.every(({ scope, uuids: wanted, count, memory, tag, preempts = [] }) => {
    if (scope !== null || !wanted.some((uuid) => uuids.includes(uuid))) return true;
    const canPreempt = tag !== null && tag?.class !== 'preemptible' && memory === undefined;
    const hasToWait = free.filter((uuid) => wanted.includes(uuid)).length < count;
    // While others give way to it, it takes their GPUs one after the other.
    return canPreempt && hasToWait && preempts.length === 0;
  });
}

/**
 * The requests that may use free GPUs before those ahead of them, each with these GPUs. An earlier one takes its GPUs first.
 * @param free that are kept for requests @param requests in the order in which they are served, as `withKeptSets` has them
 */
export function backfilled(
  free: readonly string[],
  requests: readonly LimitedRequest[],
  gpus: readonly GPUUse[],
  now: number,
): Map<number, string[]> {
  const found = new Map<number, string[]>();
  const ahead: LimitedRequest[] = [];
  let unused = free;
  let uses = gpus;
  /** The shortest limits with which as many of these GPUs could not be used: a thousand requests are alike. */
  const refused = new Map<string, number>();
  for (const request of requests) {
    if (unused.length === 0) break;
    const { slot, count, uuids, limitMs, scope, memory, tag } = request;
    const chosen = unused.filter((uuid) => uuids.includes(uuid)).slice(0, count);
    const mayBeLent = scope === null && memory === undefined;
    const isAble = mayBeLent && ahead.length > 0 && chosen.length === count;
    const key = chosen.join();
    if (isAble && tag?.class === 'preemptible' && mayUseMeanwhile(chosen, unused, ahead)) {
      found.set(slot, chosen);
      unused = unused.filter((uuid) => !chosen.includes(uuid));
      continue;
    }
    if (limitMs !== null && isAble && limitMs < (refused.get(key) ?? Number.POSITIVE_INFINITY)) {
      if (mayBackfill(chosen, limitMs, ahead, uses, now)) {
        found.set(slot, chosen);
        unused = unused.filter((uuid) => !chosen.includes(uuid));
        uses = lend(uses, chosen, now + limitMs);
        continue;
      }
      refused.set(key, limitMs);
    }
    ahead.push(request);
  }
  return found;
}

function lend(gpus: readonly GPUUse[], uuids: readonly string[], leasedUntil: number): GPUUse[] {
  return gpus.map((gpu) => (uuids.includes(gpu.uuid) ? { ...gpu, leasedUntil } : gpu));
}
