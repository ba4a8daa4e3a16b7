import { now, sleeping } from '../platform/index.ts';
import { type Claim, type ClaimRequest, claim, type Refusal } from './claim.ts';
import type { NotFound } from './discovery.ts';
import type { Effectful } from './effects.ts';
import { AHEAD_PER_LOOK, Patience, reservedFor } from './fairness.ts';
import { PULSE, type Standing, thatCount, waitersIn } from './wait-queue.ts';

/** Between two attempts, in ms: most who wait take what they can have within some ms. */
const FIRST_PAUSE = 10;
const LONGEST_PAUSE = 100;
/** Places that change hands all the time can't be told from waiters who come and go: then the claim gives up after so many ms. */
const LIMIT = 15_000;

/**
 * The patience of those who have no place in line with those who have one: what these could use is left to them, but they have some
 * seconds only to take it. So a waiter who never does, which anybody can forge, keeps no GPU idle.
 */
export class PatienceFromOutside {
  readonly #patience = new Patience();
  readonly standing: Standing & { passedOver: Set<number> } = { place: null, passedOver: new Set() };

  /** After an attempt in vain. @returns whether those who don't take what they could are all that is in the way */
  observe({ candidates, directory, wish }: Pick<NotFound, 'candidates' | 'directory' | 'wish'>): boolean {
    const free = candidates
      .filter(({ verdict: { state, keptFor } }) => state === 'free' || keptFor !== undefined)
      .map(({ gpu }) => gpu.uuid);
    const waiters = [...thatCount(waitersIn(directory))].filter(({ scope }) => scope === wish.scope);
    const at = now();
    this.#patience.observe(waiters, new Set(free), at);
    // Those in line, who look only once in a while, come first.
    const ahead = waiters.length < 2 ? 0 : (1 + Math.ceil(waiters.length / AHEAD_PER_LOOK)) * PULSE;
    this.standing.passedOver = this.#patience.passedOver(waiters.length, at - ahead);
    const others = waiters.filter(({ place }) => !this.#patience.isAble(place));
    return free.length - reservedFor(free, wish.scope, others).size >= wish.count;
  }
}

/**
 * Claims without waiting for GPUs to come free, but for some seconds for those in line, where they could take what is free.
 * @throws as {@link claim}
 */
export function* claimAtOnce(
  request: ClaimRequest,
  configuredDirectory: string | undefined,
): Effectful<Claim | Refusal> {
  const patience = new PatienceFromOutside();
  const started = now();
  for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
    const before = patience.standing.passedOver.size;
    const result = yield* claim(request, configuredDirectory, patience.standing);
    if (result.granted || now() - started > LIMIT || !patience.observe(result)) return result;
    if (patience.standing.passedOver.size <= before) yield* sleeping(pause);
  }
}
