import type { GPUReason } from '../errors.ts';
import { errno, native, OFD, SHARED } from '../native.ts';
import { now, timerMs } from '../platform/index.ts';
import type { Refusal } from './claim.ts';
import { abortedError, runAsync } from './effects.ts';
import { type Candidate, reasonsOf, reserveForWaiters } from './evaluate.ts';
import { isLeased, openLeases } from './lease-file.ts';
import { LockDirectory } from './lock-directory.ts';
import type { ClaimRequest } from './options.ts';
import { survey } from './survey.ts';
import {
  activeWaiters,
  findBlockers,
  HEARTBEAT_MS,
  type QueuePosition,
  readWaiters,
  Slot,
  StallDetector,
  WAITERS_PER_HEARTBEAT,
  WaitQueue,
} from './wait-queue.ts';

/** How it stands with a claim that waits. */
export interface WaitingState {
  /** Why each GPU can't be had yet. */
  gpus: readonly GPUReason[];
  /** UUIDs of those that might become free for this claim. */
  wanted: readonly string[];
  /** 1: first in the queue; null: without a slot. */
  position: number | null;
  /** How many GPUs are waited for. */
  count: number;
}

export interface QueuedWaitOptions {
  /** When to give up, on the clock of `now()`, in ms. */
  end: number;
  signal?: AbortSignal | undefined;
  /** Called whenever there is news. */
  onWaiting?: ((state: WaitingState) => void) | undefined;
  /** Somebody looks on: find out every few seconds how things stand, also while others are to be served first. */
  watched?: boolean | undefined;
}

/** For those ahead. */
interface BlockedWait {
  queue: WaitQueue;
  slot: Slot;
  /** The slots that are waited for. */
  blockers: readonly number[];
  ended: boolean;
}

/** A limit for what should not happen: a change that nobody told of. In ms. */
const MAX_REST_MS = 300_000;

/** A claimant's stay in the queue: who is to be served before it, and whether they let themselves be served. */
export class QueuedWaiter {
  readonly #request: ClaimRequest;
  readonly #stallDetector = new StallDetector();
  #refusal: Refusal;
  #slot: Slot | null;
  #skipped: ReadonlySet<number> = new Set();
  /** How often this one looks whether others take what they could, in ms. */
  #interval = HEARTBEAT_MS;
  #observed = 0;

  constructor(request: ClaimRequest, refusal: Refusal) {
    this.#request = request;
    this.#refusal = refusal;
    this.#slot = Slot.join(refusal.directory, refusal.record, refusal.gpuRequest);
  }

  /** Without a slot, everybody in the queue is ahead. */
  get position(): QueuePosition {
    return { slot: this.#slot?.number ?? null, skipped: this.#skipped };
  }

  /** An attempt failed: perhaps something else is to be waited for now. */
  update(refusal: Refusal): void {
    this.#refusal = refusal;
    if (this.#slot?.isIntact() === false) {
      this.#slot.leave(); // somebody removed the file: newcomers wait in another queue
      this.#slot = Slot.join(refusal.directory, refusal.record, refusal.gpuRequest);
    }
    this.#slot?.updateRequest(refusal.gpuRequest);
    this.#observe(refusal.candidates);
  }

  leave(): void {
    this.#slot?.leave();
    this.#slot = null;
  }

  /**
   * Resolves when GPUs are left that nobody ahead could use, or when time is up.
   * @returns whether it took a wait
   */
  async waitForTurn(options: QueuedWaitOptions): Promise<boolean> {
    for (let waited = false; ; waited = true) {
      const slot = this.#slot;
      const queue = slot === null ? null : WaitQueue.open(this.#refusal.directory);
      if (slot === null || queue === null) {
        this.#report(options, null);
        return waited;
      }
      try {
        const ahead = queue.slots(slot.number);
        this.#report(options, ahead.length + 1);
        const nearestFirst = activeWaiters(queue.waiters(ahead.toReversed()), this.#skipped);
        const blockers = findBlockers(this.#refusal.gpuRequest, nearestFirst);
        if (blockers.length === 0 || now() >= options.end) return waited;
        this.#interval = Math.ceil((ahead.length + 1) / WAITERS_PER_HEARTBEAT) * HEARTBEAT_MS;
        const slots = blockers.map((blocker) => blocker.slot);
        const wait: BlockedWait = { queue, slot, blockers: slots, ended: false };
        await this.#whileAhead(wait, options).finally(() => (wait.ended = true));
      } finally {
        queue.close();
      }
    }
  }

  /** Resolves when one of the blockers leaves or is to be skipped, or time is up. */
  async #whileAhead(wait: BlockedWait, options: QueuedWaitOptions): Promise<void> {
    const { queue, slot, blockers } = wait;
    const { end, signal } = options;
    const endings: (() => void)[] = [];
    try {
      await new Promise<void>((resolve, reject) => {
        if (signal?.aborted) return reject(abortedError(signal));
        const onAbort = () => reject(abortedError(signal));
        signal?.addEventListener('abort', onAbort, { once: true });
        endings.push(() => signal?.removeEventListener('abort', onAbort));
        for (const number of blockers) {
          const waiting = new (native().Wait)(queue.descriptor, OFD, SHARED, number, 1, (error) => {
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
          const quiet = this.#interval - HEARTBEAT_MS / 2;
          slot.watch(blockers, descriptors, quiet, (unlocked) => (unlocked ? look() : resolve()));
        };
        watch();
        const timer = setInterval(look, options.watched ? HEARTBEAT_MS : MAX_REST_MS);
        endings.push(
          () => clearInterval(timer),
          () => clearTimeout(soon),
          () => slot.unwatch(),
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
    const { gpuRequest, directory, job } = this.#refusal;
    const files = gpuRequest.uuids.map((uuid) =>
      uuid === '' ? [] : openLeases(directory, { uuid, job: job?.generation ?? null }),
    );
    return { descriptors: files.flat(), complete: files.every((each) => each.length > 0) };
  }

  /** Whether the wait behind these blockers is over. */
  async #lookAhead(wait: BlockedWait, options: QueuedWaitOptions): Promise<boolean> {
    const { queue, slot, blockers } = wait;
    const ahead = queue.slots(slot.number);
    const there = (number: number) => ahead.includes(number) && queue.waiter(number)?.isSuspended === false;
    if (!slot.isIntact() || !blockers.every(there)) return true;
    const { gpuRequest, directory, job } = this.#refusal;
    // What is leased can't be taken by anybody, so nobody is to blame.
    if (
      !options.watched &&
      gpuRequest.uuids.every(
        (uuid) => uuid !== '' && isLeased(directory, { uuid, job: job?.generation ?? null }),
      )
    )
      return false;
    const { candidates } = await runAsync(survey(this.#request, LockDirectory.open), options.signal);
    if (wait.ended) return true; // the next wait has a watch of its own by now, and this one's files are closed
    this.#observe(candidates);
    const kept = reserveForWaiters(
      candidates,
      gpuRequest.scope,
      activeWaiters(queue.waiters(ahead), this.#skipped),
    );
    this.#refusal = { ...this.#refusal, candidates: kept };
    this.#report(options, ahead.length + 1);
    return blockers.some((number) => this.#skipped.has(number));
  }

  #observe(candidates: readonly Candidate[]): void {
    const free = candidates.filter(
      ({ verdict: { state, keptFor } }) => state === 'free' || keptFor !== undefined,
    );
    const { directory, gpuRequest } = this.#refusal;
    const waiters = free.length === 0 ? [] : readWaiters(directory, this.#slot?.number);
    const ahead = [...activeWaiters(waiters)].filter(({ scope }) => scope === gpuRequest.scope);
    const at = now();
    // Much may have happened in between. Looks come with a beat of the pulse, so one may be a beat late, or left out.
    if (at - this.#observed > 2 * this.#interval + HEARTBEAT_MS) this.#stallDetector.forget();
    this.#observed = at;
    this.#stallDetector.observe(ahead, new Set(free.map(({ gpu }) => gpu.uuid)), at);
    this.#skipped = this.#stallDetector.stalled(ahead.length, at);
  }

  #report({ onWaiting }: QueuedWaitOptions, position: number | null): void {
    const { candidates, gpuRequest } = this.#refusal;
    onWaiting?.({ gpus: reasonsOf(candidates), wanted: gpuRequest.uuids, position, count: gpuRequest.count });
  }
}
