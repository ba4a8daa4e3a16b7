import { now } from '../platform/index.ts';
import type { LockDirectory } from './lock-directory.ts';
import type { KeptSlot } from './wait-queue.ts';

/** Waits are over soon, as a rule: how long one lasts before the process becomes a smaller one, in ms. */
const REST_BEHIND_MS = 2_000;
/** The same for those whose turn it is: to start anew when a GPU comes free costs them some 100 ms. */
const REST_AT_FRONT_MS = 10_000;
/** How long a person who looks on may see the same reasons, in ms. */
const REFRESH_MS = 60_000;
/** A rest that was shorter was in vain, in ms. */
const MIN_REST_MS = 1_000;

/** The changes that a process waits for while it rests: any of them. Descriptors stay the caller's. */
export interface Rest {
  slot: KeptSlot;
  directory: LockDirectory;
  /** Bytes on which a read lock is granted then. */
  locks: readonly { descriptor: number; byte: number }[];
  /** Slots that are left, or whose heartbeat stops. */
  ahead: readonly number[];
  /** Leases that stay free for seconds. */
  leases: readonly number[];
  /** When to look in any case, on the clock of `now()`. */
  until: number;
  /** When the whole wait ends; Infinity: never. */
  end: number;
}

/** A wait as a process leaves it to the one that goes on with it. Times are those of `now()`, which all processes share. */
export interface Rested {
  slot: KeptSlot;
  /** null: nobody has waited yet, the slot was only taken in time. */
  rest: {
    /** When the wait began, as far as rests are concerned. */
    began: number;
    /** When the rest began. */
    since: number;
    /** When the wait ends; null: never. */
    end: number | null;
  } | null;
}

/** A process that does nothing but wait can become a smaller one, and begin again when there is something to do. */
export class Resting {
  readonly #began: number;
  readonly #become: (rest: Rest, rested: Rested) => void;
  /** Whether people see meanwhile that it goes on. */
  readonly isShown: boolean;
  #rested: Rested | null;
  #isPossible = true;

  /**
   * @param rested what the process before this one left
   * @param become makes this process the smaller one; returns only if that isn't possible
   */
  constructor(rested: Rested | null, become: (rest: Rest, rested: Rested) => void, isShown = false) {
    this.#rested = rested;
    this.isShown = isShown;
    this.#become = become;
    const rest = rested?.rest ?? null;
    this.#began = rest === null || now() - rest.since < MIN_REST_MS ? now() : rest.began;
  }

  /** The wait that was left to this process, until it was taken. */
  get rested(): Rested | null {
    return this.#rested;
  }

  take(): Rested | null {
    const rested = this.#rested;
    this.#rested = null;
    return rested;
  }

  /** When those who wait behind others may rest. */
  get behindFrom(): number {
    return this.#isPossible ? this.#began + REST_BEHIND_MS : Number.POSITIVE_INFINITY;
  }

  /** When those may rest whom only leases keep from being served. */
  get frontFrom(): number {
    return this.#isPossible ? this.#began + REST_AT_FRONT_MS : Number.POSITIVE_INFINITY;
  }

  /** Returns only if it isn't possible now. */
  rest(rest: Rest): void {
    const since = now();
    const until = this.isShown ? Math.min(rest.until, since + REFRESH_MS) : rest.until;
    const end = Number.isFinite(rest.end) ? rest.end : null;
    this.#become({ ...rest, until }, { slot: rest.slot, rest: { began: this.#began, since, end } });
    this.#isPossible = false;
  }
}
