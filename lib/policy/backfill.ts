import { TIMEOUTS } from '../platform/index.ts';
import { type GPUUse, type LimitedRequest, latestStart } from './latest-start.ts';

/**
 * Whether a request may use these free GPUs before those ahead of it, though they are kept for them: it will have given them
 * back before they are needed. No latest start of another request is put off by it.
 * @param limitMs how long it uses them @param ahead all requests that are served before, in order @param now as `Date.now()`
 */
export function mayBackfill(
  uuids: readonly string[],
  limitMs: number,
  ahead: readonly LimitedRequest[],
  gpus: readonly GPUUse[],
  now: number,
): boolean {
  const lent = new Set(uuids);
  const end = now + limitMs;
  const later = gpus.map((gpu) => (lent.has(gpu.uuid) ? { ...gpu, leasedUntil: end } : gpu));
  /** Earlier requests whose start is known. */
  const known: { uuids: ReadonlySet<string>; start: number }[] = [];
  for (const [i, request] of ahead.entries()) {
    if (request.scope !== null) continue;
    const before = ahead.slice(0, i);
    const start = latestStart(request, before, gpus, now);
    const isConcerned = request.uuids.some((uuid) => lent.has(uuid));
    if (Number.isFinite(start)) {
      if (isConcerned && latestStart(request, before, later, now) > start) return false;
      known.push({ uuids: new Set(request.uuids), start });
    } else if (isConcerned) {
      // The start of this one isn't known, but it is not before a known one for which all its GPUs are kept.
      const isBehind = (other: (typeof known)[number]) =>
        end + TIMEOUTS.grace <= other.start && request.uuids.every((uuid) => other.uuids.has(uuid));
      if (!known.some(isBehind)) return false;
    }
  }
  return true;
}

/** With which time limit these GPUs could be used at once, in ms; null: with none. */
export function backfillLimit(
  uuids: readonly string[],
  ahead: readonly LimitedRequest[],
  gpus: readonly GPUUse[],
  now: number,
): number | null {
  const concerned = ahead.findIndex(
    (each) => each.scope === null && each.uuids.some((uuid) => uuids.includes(uuid)),
  );
  const first = ahead[concerned];
  if (first === undefined) return null;
  const limitMs = latestStart(first, ahead.slice(0, concerned), gpus, now) - now - TIMEOUTS.grace;
  return limitMs > 0 && Number.isFinite(limitMs) && mayBackfill(uuids, limitMs, ahead, gpus, now)
    ? limitMs
    : null;
}
