/** What somebody who stands in line waits for. */
export interface Wish {
  /** Lower ones are served first. */
  place: number;
  count: number;
  /** The GPUs that would do, as far as is known when they aren't free. */
  uuids: readonly string[];
  /** The job within whose GPUs this is; wishes of different scopes don't concern each other. null: the machine. */
  scope: string | null;
}

export interface Turn {
  /** GPUs that are left to those ahead. */
  reserved: Map<string, Wish>;
  /**
   * Empty: enough GPUs aren't reserved, so it is worth watching them. Otherwise as long as all of these stand in line, it is
   * not: usually it is the one directly ahead.
   */
  blockers: Wish[];
}

/**
 * Who may take what: a waiter takes only GPUs that nobody ahead could use. So a request for four is not starved by
 * requests for one, and one that insists on GPU 0 doesn't keep the others idle.
 * @param ahead in order
 */
export function turnOf(own: Omit<Wish, 'place'>, ahead: readonly Wish[]): Turn {
  const wanted = new Set(own.uuids);
  const concerning = ahead.filter(
    ({ scope, uuids }) => scope === own.scope && uuids.some((uuid) => wanted.has(uuid)),
  );
  return {
    reserved: reservedBy(concerning, own.scope),
    blockers: blockersOf(own.count, wanted, concerning),
  };
}

/** The GPUs that somebody ahead could use, each with the first who could. */
export function reservedBy<Waiting extends Wish>(
  ahead: readonly Waiting[],
  scope: string | null,
): Map<string, Waiting> {
  const reserved = new Map<string, Waiting>();
  for (const wish of ahead) {
    if (wish.scope !== scope) continue;
    for (const uuid of wish.uuids) if (!reserved.has(uuid)) reserved.set(uuid, wish);
  }
  return reserved;
}

function blockersOf(count: number, wanted: ReadonlySet<string>, ahead: readonly Wish[]): Wish[] {
  // The nearest who alone is in the way: so each waits for the one before, and one wakes for each that goes.
  const alone = ahead.findLast(({ uuids }) => remaining(wanted, uuids).size < count);
  if (alone !== undefined) return [alone];
  const together: Wish[] = [];
  let left = wanted;
  for (const wish of ahead.toReversed()) {
    const after = remaining(left, wish.uuids);
    if (after.size === left.size) continue;
    together.push(wish);
    left = after;
    if (left.size < count) return together;
  }
  return [];
}

function remaining(wanted: ReadonlySet<string>, taken: readonly string[]): ReadonlySet<string> {
  const left = new Set(wanted);
  for (const uuid of taken) left.delete(uuid);
  return left;
}

/** Longer than any waiter that works takes to take what it can have, in ms. */
const PATIENCE = 5_000;
/** Those behind lose their patience one after the other, so that they don't all try at once. */
const STAGGER = 20;

/**
 * Waiters who could have had GPUs for seconds and didn't take them are passed over, so that a broken one doesn't keep the
 * machine idle. They are noticed all at the same time, not one after the other.
 */
export class Patience {
  readonly #since = new Map<number, number>();

  /** @param free UUIDs of GPUs that are free now @param at ms on any clock that goes on evenly */
  observe(ahead: readonly Wish[], free: ReadonlySet<string>, at: number): void {
    const kept = new Set<string>();
    const able = new Set<number>();
    for (const { place, count, uuids } of ahead) {
      const could = uuids.filter((uuid) => free.has(uuid) && !kept.has(uuid));
      if (could.length >= count) able.add(place);
      else for (const uuid of uuids) kept.add(uuid);
    }
    for (const place of this.#since.keys()) if (!able.has(place)) this.#since.delete(place);
    for (const place of able) if (!this.#since.has(place)) this.#since.set(place, at);
  }

  forget(): void {
    this.#since.clear();
  }

  /** The places that are passed over. @param own how many stand ahead of the one who asks */
  passedOver(own: number, at: number): Set<number> {
    const limit = PATIENCE + own * STAGGER;
    return new Set([...this.#since].filter(([, since]) => at - since >= limit).map(([place]) => place));
  }
}
