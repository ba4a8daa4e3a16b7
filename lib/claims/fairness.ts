/** The GPUs that a waiter waits for. */
export interface GpuRequest {
  /** Lower ones are served first. */
  slot: number;
  count: number;
  /** The GPUs that would do, as far as is known when they aren't free. */
  uuids: readonly string[];
  /** The job within whose GPUs this is; wishes of different scopes don't concern each other. null: the machine. */
  scope: string | null;
}

/**
 * Decides which waiter may take which GPU: a waiter takes only GPUs that nobody ahead could use. So a request for four is not starved by
 * requests for one, and one that insists on GPU 0 doesn't keep the others idle.
 *
 * @param ahead in order; read no further than need be
 * @returns those of the GPUs that are left to somebody ahead, each with the first of them
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
export function findBlockers(
  { count, uuids, scope }: Omit<GpuRequest, 'slot'>,
  nearestFirst: Iterable<GpuRequest>,
): GpuRequest[] {
  const wanted = new Set(uuids);
  const together: GpuRequest[] = [];
  let left = wanted;
  for (const request of nearestFirst) {
    if (request.scope !== scope) continue;
    const alone = without(wanted, request.uuids).size;
    // Fewer may be wanted than are needed, as long as some are silent and haven't told their UUIDs. That is nobody's fault.
    if (alone === wanted.size) continue;
    if (alone < count) return [request];
    const after = without(left, request.uuids);
    if (after.size === left.size) continue;
    together.push(request);
    left = after;
    if (left.size < count) return together;
  }
  return [];
}

function without(uuids: Set<string>, taken: readonly string[]): Set<string> {
  const left = new Set(uuids);
  for (const uuid of taken) left.delete(uuid);
  return left;
}

/** With so many more waiters ahead each looks a pulse later whether those take what they could. */
export const WAITERS_PER_HEARTBEAT = 25;
/** Longer than any waiter that works takes to take what it can have, in ms. */
const STALL_TIMEOUT_MS = 2_500;
/** Those behind lose their patience one after the other, so that they don't all try at once. */
const STALL_STAGGER_MS = 20;

/**
 * Waiters who could have had GPUs for seconds and didn't take them are skipped, so that a broken one doesn't keep the
 * machine idle. They are noticed all at the same time, not one after the other.
 */
export class StallDetector {
  readonly #since = new Map<number, number>();

  /** @param free UUIDs of GPUs that are free now @param at ms on any clock that goes on evenly */
  observe(ahead: readonly GpuRequest[], free: ReadonlySet<string>, at: number): void {
    const kept = new Set<string>();
    const able = new Set<number>();
    for (const { slot, count, uuids } of ahead) {
      const could = uuids.filter((uuid) => free.has(uuid) && !kept.has(uuid));
      if (could.length >= count) able.add(slot);
      else for (const uuid of uuids) kept.add(uuid);
    }
    for (const slot of this.#since.keys()) if (!able.has(slot)) this.#since.delete(slot);
    for (const slot of able) if (!this.#since.has(slot)) this.#since.set(slot, at);
  }

  /** Whether whoever has the slot could have had what they wait for, when last observed. */
  couldTake(slot: number): boolean {
    return this.#since.has(slot);
  }

  forget(): void {
    this.#since.clear();
  }

  /** The slots that are skipped. @param own how many are ahead of the one who asks */
  stalled(own: number, at: number): Set<number> {
    const limit = STALL_TIMEOUT_MS + own * STALL_STAGGER_MS;
    return new Set([...this.#since].filter(([, since]) => at - since >= limit).map(([slot]) => slot));
  }
}
