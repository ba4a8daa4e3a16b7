import { TIMEOUTS } from '../../platform/index.ts';
import type { GpuRequest } from '../rules/index.ts';

/** Per this many waiters ahead, a waiter checks one heartbeat later whether they take what they could. */
export const WAITERS_PER_HEARTBEAT = 25;
/** So much longer for one that waits in the small process: until it has started Node.js and looked at the driver, in ms. */
const STALL_WAKING_MS = 3_000;
/** Added to the patience per waiter ahead, so that waiters don't all try at once. */
const STALL_STAGGER_MS = 20;

/**
 * Waiters who could have had GPUs for seconds and didn't take them are skipped, so that a broken one doesn't keep the
 * machine idle. They are noticed all at the same time, not one after the other.
 */
export class StallDetector {
  readonly #since = new Map<number, number>();

  /**
   * @param free UUIDs of GPUs that are free now @param at ms on any clock that goes on evenly
   * @param lent slots of those that could use such GPUs though these are kept for others
   */
  observe(
    ahead: readonly (GpuRequest & { isIdle?: boolean })[],
    free: ReadonlySet<string>,
    at: number,
    lent: ReadonlySet<number> = new Set(),
  ): void {
    const kept = new Set<string>();
    const able = new Map<number, number>();
    for (const { slot, count, uuids, isIdle = false } of ahead) {
      const could = uuids.filter((uuid) => free.has(uuid) && !kept.has(uuid));
      if (could.length >= count || lent.has(slot)) able.set(slot, isIdle ? at + STALL_WAKING_MS : at);
      else for (const uuid of uuids) kept.add(uuid);
    }
    for (const slot of this.#since.keys()) if (!able.has(slot)) this.#since.delete(slot);
    for (const [slot, since] of able) if (!this.#since.has(slot)) this.#since.set(slot, since);
  }

  /** Whether the waiter in the slot could have had what it waits for, when last observed. */
  couldTake(slot: number): boolean {
    return this.#since.has(slot);
  }

  forget(): void {
    this.#since.clear();
  }

  /** Whether their GPUs could have been claimed, when last observed. */
  get suspects(): boolean {
    return this.#since.size > 0;
  }

  /** The slots that are skipped. @param own how many are ahead of the one who asks */
  stalled(own: number, at: number): Set<number> {
    const limit = TIMEOUTS.stall + own * STALL_STAGGER_MS;
    return new Set([...this.#since].filter(([, since]) => at - since >= limit).map(([slot]) => slot));
  }
}
