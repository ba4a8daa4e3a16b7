import type { GPUReason } from '../errors.ts';
import { errno, native, OFD, SHARED } from '../native.ts';
import { now, timerMs } from '../platform/index.ts';
import { type ClaimRequest, type Refusal, survey } from './claim.ts';
import { aborted, runAsync } from './effects.ts';
import { type Candidate, keepBack, reasonsOf } from './evaluate.ts';
import { AHEAD_PER_LOOK, blockersOf, Patience } from './fairness.ts';
import { isLeased, openLeases } from './lease-file.ts';
import { Line, Place, PULSE, type Standing, thatCount, waitersIn } from './wait-queue.ts';

/** How a claim is attempted: with which request, and under which configured lock directory. */
export interface Attempting {
  request: ClaimRequest;
  configuredDirectory: string | undefined;
}

/** How it stands with a claim that waits. */
export interface WaitingState {
  /** Why each GPU can't be had yet. */
  gpus: readonly GPUReason[];
  /** UUIDs of those that might become free for this claim. */
  wanted: readonly string[];
  /** 1: first in line; null: without a place. */
  position: number | null;
  /** How many GPUs are waited for. */
  count: number;
}

export interface StandingOptions {
  /** When to give up, on the clock of `now()`, in ms. */
  end: number;
  signal?: AbortSignal | undefined;
  /** Called whenever there is news. */
  onWaiting?: ((state: WaitingState) => void) | undefined;
  /** Somebody looks on: find out every few seconds how things stand, also while others are to be served first. */
  watched?: boolean | undefined;
}

/** For those ahead. */
interface Wait {
  line: Line;
  place: Place;
  /** Who is waited for. */
  places: readonly number[];
  ended: boolean;
}

/** A limit for what should not happen: a change that nobody told of. In ms. */
const LONGEST_REST = 300_000;

/** A claimant's stay in the line: who is to be served before it, and whether they let themselves be served. */
export class StandingInLine {
  readonly #attempting: Attempting;
  readonly #patience = new Patience();
  #refusal: Refusal;
  #place: Place | null;
  #passedOver: ReadonlySet<number> = new Set();
  /** How often this one looks whether others take what they could, in ms. */
  #interval = PULSE;
  #observed = 0;

  constructor(attempting: Attempting, refusal: Refusal) {
    this.#attempting = attempting;
    this.#refusal = refusal;
    this.#place = Place.join(refusal.directory, refusal.record, refusal.wish);
  }

  /** Without a place, everybody in line is ahead. */
  get standing(): Standing {
    return { place: this.#place?.number ?? null, passedOver: this.#passedOver };
  }

  /** An attempt was in vain: perhaps something else is to be waited for now. */
  update(refusal: Refusal): void {
    this.#refusal = refusal;
    if (this.#place?.isIntact() === false) {
      this.#place.leave(); // somebody removed the file: newcomers stand in another line
      this.#place = Place.join(refusal.directory, refusal.record, refusal.wish);
    }
    this.#place?.wish(refusal.wish);
    this.#observe(refusal.candidates);
  }

  leave(): void {
    this.#place?.leave();
    this.#place = null;
  }

  /**
   * Resolves when GPUs are left that nobody ahead could use, or when time is up.
   * @returns whether it took a wait
   */
  async untilTurn(options: StandingOptions): Promise<boolean> {
    for (let waited = false; ; waited = true) {
      const place = this.#place;
      const line = place === null ? null : Line.open(this.#refusal.directory);
      if (place === null || line === null) {
        this.#report(options, null);
        return waited;
      }
      try {
        const ahead = line.places(place.number);
        this.#report(options, ahead.length + 1);
        const nearestFirst = thatCount(line.waiters(ahead.toReversed()), this.#passedOver);
        const blockers = blockersOf(this.#refusal.wish, nearestFirst);
        if (blockers.length === 0 || now() >= options.end) return waited;
        this.#interval = Math.ceil((ahead.length + 1) / AHEAD_PER_LOOK) * PULSE;
        const places = blockers.map((blocker) => blocker.place);
        const wait: Wait = { line, place, places, ended: false };
        await this.#whileAhead(wait, options).finally(() => (wait.ended = true));
      } finally {
        line.close();
      }
    }
  }

  /** Resolves when one of the places is given up, its waiter is to be passed over, or time is up. */
  async #whileAhead(wait: Wait, options: StandingOptions): Promise<void> {
    const { line, place, places } = wait;
    const { end, signal } = options;
    const endings: (() => void)[] = [];
    try {
      await new Promise<void>((resolve, reject) => {
        if (signal?.aborted) return reject(aborted(signal));
        const onAbort = () => reject(aborted(signal));
        signal?.addEventListener('abort', onAbort, { once: true });
        endings.push(() => signal?.removeEventListener('abort', onAbort));
        for (const number of places) {
          const waiting = new (native().Wait)(line.descriptor, OFD, SHARED, number, 1, (error) => {
            if (error === 0) return resolve();
            if (error === errno.ECANCELED || wait.ended) return;
            blind = true; // no thread can be had to wait with, and the looks must do
            look();
          });
          endings.push(() => waiting.cancel());
        }
        let blind = false;
        const left = end - now();
        if (Number.isFinite(left)) {
          const timer = setTimeout(resolve, timerMs(left));
          endings.push(() => clearTimeout(timer));
        }
        let looking = false;
        const look = () => {
          if (looking) return;
          looking = true;
          this.#lookAhead(wait, options)
            .then((over) => (over ? resolve() : watch()), reject)
            .finally(() => (looking = false));
        };
        let soon: NodeJS.Timeout | undefined;
        const watch = () => {
          const { descriptors, complete } = this.#leases();
          clearTimeout(soon);
          if (blind || !complete) soon = setTimeout(look, this.#interval);
          // Half a beat less, so that it is the beat at the end of the interval that looks, and not the one after it.
          const quiet = this.#interval - PULSE / 2;
          place.watch(places, descriptors, quiet, (unlocked) => (unlocked ? look() : resolve()));
        };
        watch();
        const timer = setInterval(look, options.watched ? PULSE : LONGEST_REST);
        endings.push(
          () => clearInterval(timer),
          () => clearTimeout(soon),
          () => place.unwatch(),
        );
      });
    } finally {
      for (const ending of endings) ending();
    }
  }

  /**
   * Descriptors of the lease files of what is waited for. A GPU that nobody has ever leased has none that could be watched, nor
   * has one that is silent and hasn't told its UUID.
   */
  #leases(): { descriptors: number[]; complete: boolean } {
    const { wish, directory, job } = this.#refusal;
    const files = wish.uuids.map((uuid) =>
      uuid === '' ? [] : openLeases(directory, { uuid, job: job?.generation ?? null }),
    );
    return { descriptors: files.flat(), complete: files.every((each) => each.length > 0) };
  }

  /** Whether the wait behind these places is over. */
  async #lookAhead(wait: Wait, options: StandingOptions): Promise<boolean> {
    const { line, place, places } = wait;
    const ahead = line.places(place.number);
    const there = (number: number) => ahead.includes(number) && line.waiter(number)?.stopped === false;
    if (!place.isIntact() || !places.every(there)) return true;
    const { wish, directory, job } = this.#refusal;
    // What is leased can't be taken by anybody, so nobody is to blame.
    if (
      !options.watched &&
      wish.uuids.every((uuid) => uuid !== '' && isLeased(directory, { uuid, job: job?.generation ?? null }))
    )
      return false;
    const { request, configuredDirectory } = this.#attempting;
    const { candidates } = await runAsync(survey(request, configuredDirectory), options.signal);
    if (wait.ended) return true; // the next wait has a watch of its own by now, and this one's files are closed
    this.#observe(candidates);
    const kept = keepBack(candidates, wish.scope, thatCount(line.waiters(ahead), this.#passedOver));
    this.#refusal = { ...this.#refusal, candidates: kept };
    this.#report(options, ahead.length + 1);
    return places.some((number) => this.#passedOver.has(number));
  }

  #observe(candidates: readonly Candidate[]): void {
    const free = candidates.filter(
      ({ verdict: { state, keptFor } }) => state === 'free' || keptFor !== undefined,
    );
    const { directory, wish } = this.#refusal;
    const waiters = free.length === 0 ? [] : waitersIn(directory, this.#place?.number);
    const ahead = [...thatCount(waiters)].filter(({ scope }) => scope === wish.scope);
    const at = now();
    // Much may have happened in between. Looks come with a beat of the pulse, so one may be a beat late, or left out.
    if (at - this.#observed > 2 * this.#interval + PULSE) this.#patience.forget();
    this.#observed = at;
    this.#patience.observe(ahead, new Set(free.map(({ gpu }) => gpu.uuid)), at);
    this.#passedOver = this.#patience.passedOver(ahead.length, at);
  }

  #report({ onWaiting }: StandingOptions, position: number | null): void {
    const { candidates, wish } = this.#refusal;
    onWaiting?.({ gpus: reasonsOf(candidates), wanted: wish.uuids, position, count: wish.count });
  }
}
