import { now, TIMEOUTS } from '../../platform/index.ts';
import type { LockDirectory } from '../locks/index.ts';
import type { KeptSlot } from './slot.ts';

/** How long a person who looks on may see the same reasons, in ms. */
const REFRESH_MS = 60_000;
/** An idle wait shorter than this doesn't pay off, in ms. */
const MIN_IDLE_MS = 1_000;

/** The changes that the small process waits for: any of them. Descriptors stay the caller's. */
export interface IdleWait {
  slot: KeptSlot;
  directory: LockDirectory;
  /** Bytes on which a read lock is granted then. */
  locks: readonly { descriptor: number; byte: number }[];
  /** Slots that are left, or whose heartbeat stops. */
  ahead: readonly number[];
  /** Whether the next one ahead is waited for while one of these is suspended: else that is a change, too. */
  movesOn: boolean;
  /** Leases that stay free for seconds. */
  leases: readonly number[];
  /** When bookings were looked at, on the clock of `now()`: later changes count. */
  seenAt: number;
  /** When to look in any case, on the clock of `now()`. */
  until: number;
  /** When the whole wait ends; Infinity: never. */
  end: number;
}

/** A wait as a process leaves it to the one that goes on with it. Times are those of `now()`, which all processes share. */
export interface HandedOverWait {
  slot: KeptSlot;
  /** The idle wait, under this name in GPU_OWNER_WAITING. null: the wait hasn't begun, the slot was only taken in time. */
  rest: {
    /** When the wait began, as far as handovers are concerned. */
    began: number;
    /** When the idle wait began. */
    since: number;
    /** When the wait ends; null: never. */
    end: number | null;
  } | null;
}

/** Hands a wait over to a smaller process in place of this one, which starts this program again when there is something to do. */
export class WaitHandover {
  readonly #began: number;
  readonly #become: (idle: IdleWait, next: HandedOverWait) => void;
  /** Whether people see meanwhile that it goes on. */
  readonly isShown: boolean;
  /** Whether the request isn't what it was when this process began: the next one reads it again. */
  readonly isStale: () => boolean;
  #received: HandedOverWait | null;
  #isPossible = true;

  /**
   * @param received what the process before this one left
   * @param become makes this process the smaller one; returns only if that isn't possible
   */
  constructor(
    received: HandedOverWait | null,
    become: (idle: IdleWait, next: HandedOverWait) => void,
    { isShown = false, isStale = () => false }: Partial<Pick<WaitHandover, 'isShown' | 'isStale'>> = {},
  ) {
    this.#received = received;
    this.isShown = isShown;
    this.isStale = isStale;
    this.#become = become;
    const idle = received?.rest ?? null;
    this.#began = idle === null || now() - idle.since < MIN_IDLE_MS ? now() : idle.began;
  }

  /** The wait that was left to this process, until it was taken. */
  get received(): HandedOverWait | null {
    return this.#received;
  }

  take(): HandedOverWait | null {
    const received = this.#received;
    this.#received = null;
    return received;
  }

  /** When waiters that aren't first may hand over. */
  get earliestBehind(): number {
    return this.#isPossible ? this.#began + TIMEOUTS.handoverBehind : Number.POSITIVE_INFINITY;
  }

  /** When those may hand over whom only leases keep from being served. */
  get earliestAtFront(): number {
    return this.#isPossible ? this.#began + TIMEOUTS.handoverAtFront : Number.POSITIVE_INFINITY;
  }

  /** Returns only if it isn't possible now. */
  handOver(idle: IdleWait): void {
    const since = now();
    const until = this.isShown ? Math.min(idle.until, since + REFRESH_MS) : idle.until;
    const end = Number.isFinite(idle.end) ? idle.end : null;
    this.#become({ ...idle, until }, { slot: idle.slot, rest: { began: this.#began, since, end } });
    this.#isPossible = false;
  }
}
