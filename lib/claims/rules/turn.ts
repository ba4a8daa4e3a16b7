import type { TogetherLimit } from './limits.ts';
import type { RequestClass } from './order.ts';
import type { ShareSize } from './shares.ts';

/** The GPUs that a waiter waits for. */
export interface GpuRequest {
  /** The waiter's number in the queue. */
  slot: number;
  count: number;
  /** The share of each GPU; missing: whole GPUs. */
  memory?: ShareSize;
  /** The GPUs that would do, as far as is known when they aren't free. */
  uuids: readonly string[];
  /** The sets of connected GPUs, among these, of which one has to have enough; missing: any of the GPUs will do. */
  sets?: readonly (readonly string[])[];
  /** The job within whose GPUs this is; wishes of different scopes don't concern each other. null: the machine. */
  scope: string | null;
}

/** A request as it joins the queue. */
export interface JoiningRequest extends Omit<GpuRequest, 'slot'> {
  class: RequestClass;
  /** How many GPUs that is, where MIG instances count by their part; default: `count`. */
  size?: number;
  /** How many GPUs the user may have at a time; default: any number. */
  most?: number;
  /** How many the user's groups may have together; default: any number. */
  together?: readonly TogetherLimit[];
  /** The tag that it had before, as text. */
  order?: string;
}

/** How many of some GPUs a request could use at most: one for connected GPUs uses those of one set. */
export function mostUsable(
  { uuids, sets = [uuids] }: Pick<GpuRequest, 'uuids' | 'sets'>,
  isAmong: (uuid: string) => boolean,
): number {
  return Math.max(0, ...sets.map((set) => set.filter(isAmong).length));
}

/**
 * Requests, each for connected GPUs with the one set that is kept for it: the one that is free first by time limits, else the one that
 * lacks the fewest GPUs, of equals the first. As nothing else starts there, its GPUs come free, and the set changes only for a better one.
 * @param ahead in order @param freeAt when a GPU is free at the latest, in ms since 1970; 0: it is free; Infinity: unknown
 */
export function* withKeptSets<Waiting extends GpuRequest>(
  ahead: Iterable<Waiting>,
  scope: string | null,
  freeAt: (uuid: string) => number,
): Generator<Waiting> {
  const wanted = new Set<string>();
  for (const request of ahead) {
    const { count, sets } = request;
    if (request.scope !== scope) {
      yield request;
      continue;
    }
    let uuids = sets === undefined ? request.uuids : [];
    let best = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
    for (const set of sets ?? []) {
      const times = set.map((uuid) => (wanted.has(uuid) ? Number.POSITIVE_INFINITY : freeAt(uuid)));
      const start = times.toSorted((a, b) => a - b)[count - 1] ?? Number.POSITIVE_INFINITY;
      const missing = Math.max(0, count - times.filter((time) => time === 0).length);
      const [bestStart = 0, fewest = 0] = best;
      if (start > bestStart || (start === bestStart && missing >= fewest)) continue;
      best = [start, missing];
      uuids = set;
    }
    for (const uuid of uuids) wanted.add(uuid);
    yield sets === undefined ? request : { ...request, uuids };
  }
}

/**
 * Decides which waiter may take which GPU: a waiter takes only GPUs that no waiter ahead could use. So a request for four is
 * not starved by requests for one, and one that insists on GPU 0 doesn't keep the others idle.
 *
 * @param ahead in order; read no further than need be
 * @returns those of the GPUs that are left to waiters ahead, each with the first of these
 */
export function reservedFor<Waiting extends GpuRequest>(
  uuids: Iterable<string>,
  scope: string | null,
  ahead: Iterable<Waiting>,
): Map<string, Waiting> {
  const open = new Set(uuids);
  const reserved = new Map<string, Waiting>();
  if (open.size === 0) return reserved;
  for (const request of ahead) {
    if (request.scope !== scope) continue;
    for (const uuid of request.uuids) if (open.delete(uuid)) reserved.set(uuid, request);
    if (open.size === 0) break;
  }
  return reserved;
}

/**
 * Whom to wait for. None: enough GPUs aren't left to others, so it is worth watching them. Otherwise it is not as long as all of
 * these wait; usually it is the one directly ahead, so that one wakes for each that goes.
 * @param nearestFirst those ahead; read no further than need be
 */
export function findBlockers<Waiting extends GpuRequest>(
  { count, uuids, sets = [uuids], scope }: Omit<GpuRequest, 'slot'>,
  nearestFirst: Iterable<Waiting>,
): Waiting[] {
  const wanted = new Set(uuids);
  const own = sets.map((set) => [...new Set(set)]);
  const leftBeside = (taken: ReadonlySet<string>) =>
    Math.max(0, ...own.map((set) => set.filter((uuid) => !taken.has(uuid)).length));
  const together: Waiting[] = [];
  const covered = new Set<string>();
  for (const request of nearestFirst) {
    if (request.scope !== scope) continue;
    // Which set of connected GPUs is kept for it in the end isn't known.
    const { sets: kept = [request.uuids] } = request;
    // Fewer may be wanted than are needed, as long as some are silent and haven't told their UUIDs. No waiter is to blame for
    // that.
    if (!kept.every((set) => set.some((uuid) => wanted.has(uuid)))) continue;
    if (kept.every((set) => leftBeside(new Set(set)) < count)) return [request];
    if (kept.length > 1 || request.uuids.every((uuid) => covered.has(uuid) || !wanted.has(uuid))) continue;
    together.push(request);
    for (const uuid of request.uuids) covered.add(uuid);
    if (leftBeside(covered) < count) return together;
  }
  return [];
}
