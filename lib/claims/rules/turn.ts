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
  { count, uuids, scope }: Omit<GpuRequest, 'slot'>,
  nearestFirst: Iterable<Waiting>,
): Waiting[] {
  const wanted = new Set(uuids);
  const together: Waiting[] = [];
  let uncovered = wanted;
  for (const request of nearestFirst) {
    if (request.scope !== scope) continue;
    const alone = without(wanted, request.uuids).size;
    // Fewer may be wanted than are needed, as long as some are silent and haven't told their UUIDs. No waiter is to blame for
    // that.
    if (alone === wanted.size) continue;
    if (alone < count) return [request];
    const after = without(uncovered, request.uuids);
    if (after.size === uncovered.size) continue;
    together.push(request);
    uncovered = after;
    if (uncovered.size < count) return together;
  }
  return [];
}

function without(uuids: Set<string>, taken: readonly string[]): Set<string> {
  const remaining = new Set(uuids);
  for (const uuid of taken) remaining.delete(uuid);
  return remaining;
}
