import type { GPUReason } from '../errors.ts';
import { errno, native, OFD, SHARED } from '../native.ts';
import { bootId, now, timerMs } from '../platform/index.ts';
import type { Attempt, NotGranted } from './claim.ts';
import {
  isLeased,
  isLocked,
  LockDirectory,
  openLeases,
  ownRecord,
  type RecordContents,
  runAsync,
  untilEvent,
} from './locks/index.ts';
import { evaluateMachine } from './machine-evaluation.ts';
import { leasesToPreempt, notifyPreemptible } from './preemption.ts';
import {
  activeWaiters,
  HEARTBEAT_MS,
  type KeptSlot,
  type QueuePosition,
  readWaiters,
  Slot,
  StallDetector,
  untilBookingsEnd,
  WAITERS_PER_HEARTBEAT,
  type Waiter,
  type WaitHandover,
  WaitQueue,
  withoutGPUs,
} from './queue/index.ts';
import { reasonsOf } from './refusal.ts';
import { findBlockers, type JoiningRequest } from './rules/index.ts';
import { hasEnough, keepSets, leaveToOthers, observeStalls, sharesAreKept } from './waiters-ahead.ts';

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
  /** Whether a user looks on: then the state is read every few seconds, also while others are to be served first. */
  watched?: boolean | undefined;
  /** For a process that does nothing but wait. */
  handover?: WaitHandover | undefined;
}

/** For those ahead. */
interface BlockedWait {
  queue: WaitQueue;
  slot: Slot;
  /** The slots that are waited for. */
  blockers: readonly number[];
  /** Whether one of them has another request by now. */
  hasChanged: () => boolean;
  ended: boolean;
}

/** A limit for what should not happen: a change without a wake-up. In ms. */
const RECHECK_MS = 300_000;
/** The same for the small process, which looks natively at all that can be foreseen. In ms. */
const MAX_IDLE_MS = 900_000;
/** The same where those ahead may get GPUs that aren't leased now: nothing tells when these come free. In ms. */
const MAX_BLIND_IDLE_MS = 60_000;
/** So much longer for each that is ahead: however many wait, few look. In ms. */
const IDLE_PER_WAITER_MS = 10_000;
/** The same at the end of a booking: those ahead look first. In ms. */
const LATER_PER_WAITER_MS = 250;
/** How many waiters at the front look often in that case, to notice one that doesn't take what it could. */
const ATTENTIVE = 4;
/** When to try again whether this one can hand over, in ms. */
const HANDOVER_RETRY_MS = 10_000;

/**
 * Takes a slot for a claim that another process is about to make: so claims are served in the order in which they were asked for.
 * @param command of the claim, for people @returns null where that can't be done; the caller leaves it
 */
export function queueUp(
  directory: LockDirectory,
  command: string,
  about: Partial<RecordContents>,
  request: JoiningRequest,
): Slot | null {
  return Slot.join(directory, { ...ownRecord(bootId(), command), ...about }, request);
}

/** A claimant's stay in the queue: who is to be served before it, and whether they let themselves be served. */
export class QueuedWaiter {
  readonly #stallDetector = new StallDetector();
  /** The last attempt. */
  #attempt: Attempt;
  #gpuRequest: JoiningRequest;
  #slot: Slot | null;
  #skipped: ReadonlySet<number> = new Set();
  /** How often this one looks whether others take what they could, in ms. */
  #interval = HEARTBEAT_MS;
  #observed = 0;
  /** How many requests were to be served before when it last looked. */
  #ahead = 0;
  /** Whether a claim could be made when it last looked, although others are to be served before. */
  #hasEnough = false;
  /** When a lease that was asked to give way is overdue, on the clock of `now()`. */
  #overdueAt = Number.POSITIVE_INFINITY;

  /** @param slot one that it has already */
  constructor({ attempt, gpuRequest }: NotGranted, slot: Slot | null = null) {
    this.#attempt = attempt;
    this.#gpuRequest = gpuRequest;
    this.#slot = slot ?? this.#join();
    if (slot === null) return;
    slot.endStart();
    this.update({ attempt, gpuRequest });
  }

  #join(): Slot | null {
    return Slot.join(this.#attempt.directory, this.#attempt.record, this.#gpuRequest);
  }

  /** Without a slot, everybody in the queue is ahead. */
  get position(): QueuePosition {
    return { slot: this.#slot?.number ?? null, skipped: this.#skipped };
  }

  /** An attempt failed: perhaps something else is to be waited for now. */
  update({ attempt, gpuRequest }: Pick<NotGranted, 'attempt' | 'gpuRequest'>): void {
    this.#attempt = attempt;
    this.#gpuRequest = gpuRequest;
    this.#hasEnough = false;
    if (this.#slot?.isIntact(attempt.directory) === false) {
      this.#slot.leave(); // the file was removed: newcomers wait in another queue
      this.#slot = this.#join();
    }
    this.#slot?.updateRequest(attempt.record, gpuRequest);
    this.#observe();
  }

  /** Has preemptible leases give way, if that lets this claimant start. To be called when it is its turn. */
  preempt(): void {
    const { directory, record, candidates } = this.#attempt;
    const gpuRequest = this.#gpuRequest;
    const slot = this.#slot;
    if (slot === null || gpuRequest.class === 'preemptible') return;
    const waiters = activeWaiters(readWaiters(directory, slot.number), this.#skipped);
    const ahead = keepSets(waiters, candidates, gpuRequest.scope);
    const { epochs, untilOverdue } = leasesToPreempt(this.#attempt, gpuRequest, ahead, slot.asked);
    this.#overdueAt = now() + untilOverdue;
    slot.updateRequest(record, gpuRequest, epochs);
    if (epochs.length > 0) notifyPreemptible(directory);
  }

  /** The slot, for the next process of this wait; null: it has none, or passes others, which that one wouldn't. */
  get kept(): KeptSlot | null {
    return this.#skipped.size === 0 ? (this.#slot?.kept ?? null) : null;
  }

  /**
   * The time until this one has to look again, as bookings in the way have ended and it is its turn, or as a lease hasn't given way.
   * In ms.
   */
  untilNextLook(): number {
    const bookings = untilBookingsEnd(this.#attempt.candidates) + this.#ahead * LATER_PER_WAITER_MS;
    return Math.min(bookings, Math.max(0, this.#overdueAt - now()));
  }

  /** Calls back when bookings have changed since the last attempt. @returns ends that */
  watchBookings(onChange: () => void): () => void {
    this.#slot?.watch([], [], 0, this.#attempt.seenAt, onChange);
    return () => this.#slot?.unwatch();
  }

  /** Whether no request ahead could be served now: then this one starts its command as soon as a lease ends. */
  get isFirst(): boolean {
    const slot = this.#slot;
    const queue = slot === null ? null : WaitQueue.open(this.#attempt.directory);
    if (slot === null || queue === null) return false;
    try {
      const ahead = activeWaiters(queue.waiters(queue.ahead(slot.number)), this.#skipped);
      for (const { scope } of ahead) if (scope === this.#gpuRequest.scope) return false;
      return queue.waiter(slot.number)?.isAboveLimit === false;
    } finally {
      queue.close();
    }
  }

  leave(): void {
    this.#slot?.leave();
    this.#slot = null;
  }

  /**
   * Resolves when GPUs are left that no waiter ahead could use, or when time is up.
   * @returns whether it took a wait
   */
  async waitForTurn(options: QueuedWaitOptions): Promise<boolean> {
    for (let waited = false; ; waited = true) {
      const slot = this.#slot;
      const queue = slot === null ? null : WaitQueue.open(this.#attempt.directory);
      if (slot === null || queue === null) {
        this.#report(options, null);
        return waited;
      }
      try {
        if (waited && !slot.isIntact(this.#attempt.directory)) return true;
        const ahead = queue.ahead(slot.number);
        this.#ahead = ahead.length;
        this.#report(options, ahead.length + 1);
        const blockers = this.#blockers(queue, ahead);
        if (blockers.length === 0 || this.#hasEnough || now() >= options.end) return waited;
        this.#interval = Math.ceil((ahead.length + 1) / WAITERS_PER_HEARTBEAT) * HEARTBEAT_MS;
        const slots = blockers.map((blocker) => blocker.slot);
        const hasChanged = () =>
          blockers.some((blocker) => queue.tag(blocker.slot)?.joined !== blocker.tag?.joined);
        const wait: BlockedWait = { queue, slot, blockers: slots, hasChanged, ended: false };
        const handOverIn = await this.#handOverBehind(wait, ahead.length, options);
        await this.#whileAhead(wait, options, handOverIn).finally(() => (wait.ended = true));
      } finally {
        queue.close();
      }
    }
  }

  #blockers(queue: WaitQueue, ahead: readonly number[]): Waiter[] {
    const { candidates } = this.#attempt;
    const active = (slots: readonly number[]) => activeWaiters(queue.waiters(slots), this.#skipped);
    // Where a share may fit beside all that is kept for those ahead, GPUs are watched, not the queue.
    if (this.#gpuRequest.memory !== undefined && !sharesAreKept(candidates, this.#usable, active(ahead)))
      return [];
    return findBlockers(this.#usable, active(ahead.toReversed()));
  }

  /**
   * Replaces this process by a smaller one that waits for these, if the wait has lasted long enough. @returns otherwise, after how
   * many ms to ask again
   */
  async #handOverBehind(wait: BlockedWait, ahead: number, options: QueuedWaitOptions): Promise<number> {
    const { end, watched, handover } = options;
    if (handover === undefined || (watched && !handover.isShown)) return Number.POSITIVE_INFINITY;
    const early = handover.earliestBehind - now();
    if (early > 0) return early;
    // A GPU that has come free since the last look may do for this request, and its next change may be hours away.
    if ((await this.#lookAhead(wait, options)) || wait.hasChanged()) return 0;
    const opened = this.#leaseFiles();
    const leases = opened.map((files) => files.filter((descriptor) => isLocked(descriptor)));
    const isBlind = leases.some((files) => files.length === 0);
    const isSuspicious = ahead < ATTENTIVE || this.#stallDetector.suspects;
    const { directory, seenAt } = this.#attempt;
    const { kept } = this;
    if (kept !== null && !(isBlind && isSuspicious)) {
      const longest = (isBlind ? MAX_BLIND_IDLE_MS : MAX_IDLE_MS) + ahead * IDLE_PER_WAITER_MS;
      const latest = Math.min(longest * (0.75 + Math.random() / 2), this.untilNextLook()); // not all at the same time
      const until = Math.min(end, now() + latest);
      handover.handOver({
        slot: kept,
        directory,
        locks: [],
        ahead: wait.blockers,
        movesOn: !isBlind,
        leases: leases.flat(),
        seenAt,
        until,
        end,
      });
    }
    for (const descriptor of opened.flat()) native().fileClose(descriptor);
    return HANDOVER_RETRY_MS;
  }

  /** The request, for the GPUs that aren't booked by others now. */
  get #usable(): JoiningRequest {
    const booked = this.#attempt.candidates.filter(({ verdict }) => verdict.bookedUntil !== undefined);
    return withoutGPUs(
      this.#gpuRequest,
      booked.map(({ gpu }) => gpu.uuid),
    );
  }

  /** Resolves when one of the blockers leaves or is to be skipped, or time is up. @param longest in ms */
  async #whileAhead(wait: BlockedWait, options: QueuedWaitOptions, longest: number): Promise<void> {
    const { queue, slot, blockers } = wait;
    await untilEvent(options.signal, (resolve, endings, reject) => {
      for (const number of blockers) {
        const waiting = new (native().Wait)(queue.descriptor, OFD, SHARED, number, 1, (error) => {
          if (error === 0) return resolve();
          if (error === errno.ECANCELED || wait.ended) return;
          blind = true; // no thread can be had to wait with, and the looks must do
          look();
        });
        endings.push(() => waiting.cancel());
      }
      // A blocker's number was free for a moment, and may belong to a later request.
      if (wait.hasChanged()) return resolve();
      let blind = false;
      const remainingMs = Math.min(options.end - now(), longest);
      if (Number.isFinite(remainingMs)) {
        const timer = setTimeout(resolve, timerMs(remainingMs));
        endings.push(() => clearTimeout(timer));
      }
      let looking = false;
      const look = () => {
        if (looking || wait.ended) return;
        looking = true;
        this.#lookAhead(wait, options)
          .then((over) => (over || wait.ended ? resolve() : watch()), reject)
          .finally(() => (looking = false));
      };
      let soon: NodeJS.Timeout | undefined;
      const watch = () => {
        const { descriptors, complete } = this.#leases();
        clearTimeout(soon);
        if (blind || !complete) soon = setTimeout(look, this.#interval);
        // Half a beat less, so that it is the beat at the end of the interval that looks, and not the one after it.
        const quiet = this.#interval - HEARTBEAT_MS / 2;
        const { seenAt } = this.#attempt;
        slot.watch(blockers, descriptors, quiet, seenAt, (changed) => (changed ? look() : resolve()));
      };
      watch();
      const timer = setInterval(look, options.watched ? HEARTBEAT_MS : RECHECK_MS);
      endings.push(
        () => clearInterval(timer),
        () => clearTimeout(soon),
        () => slot.unwatch(),
      );
    });
  }

  /**
   * Descriptors of the lease files of what is waited for. A GPU that was never leased has none that could be watched, nor has
   * one that is silent and hasn't told its UUID.
   */
  #leases(): { descriptors: number[]; complete: boolean } {
    const files = this.#leaseFiles();
    return { descriptors: files.flat(), complete: files.every((each) => each.length > 0) };
  }

  /** The lease files of each GPU. */
  #leaseFiles(): number[][] {
    const { directory, job } = this.#attempt;
    return this.#usable.uuids.map((uuid) =>
      uuid === '' ? [] : openLeases(directory, { uuid, job: job?.epoch ?? null }),
    );
  }

  /** Whether the wait for these blockers is over. */
  async #lookAhead(wait: BlockedWait, options: QueuedWaitOptions): Promise<boolean> {
    const { queue, slot, blockers } = wait;
    const attempt = this.#attempt;
    const gpuRequest = this.#gpuRequest;
    attempt.seenAt = now();
    const ahead = queue.ahead(slot.number);
    const there = (number: number) => {
      const waiter = ahead.includes(number) ? queue.waiter(number) : null;
      return waiter !== null && !waiter.isSuspended && !waiter.isAboveLimit;
    };
    const { directory, job, request } = attempt;
    if (!slot.isIntact(directory) || !blockers.every(there)) return true;
    // No waiter can take a leased GPU, so none is to blame. One that was booked may not be watched yet.
    if (
      !options.watched &&
      gpuRequest.memory === undefined &&
      this.#usable.uuids.length === gpuRequest.uuids.length &&
      gpuRequest.uuids.every((uuid) => uuid !== '' && isLeased(directory, { uuid, job: job?.epoch ?? null }))
    )
      return false;
    const found = await runAsync(evaluateMachine(request, LockDirectory.open), options.signal);
    if (wait.ended) return true; // the next wait has a watch of its own by now, and this one's files are closed
    attempt.candidates = leaveToOthers(found, () => activeWaiters(queue.waiters(ahead), this.#skipped));
    this.#observe();
    this.#hasEnough = hasEnough(attempt.candidates, gpuRequest);
    // Bookings may have begun or ended since the wait began.
    if (this.#hasEnough || this.#blockers(queue, ahead).length === 0) return true;
    this.#report(options, ahead.length + 1);
    return blockers.some((number) => this.#skipped.has(number));
  }

  #observe(): void {
    const at = now();
    // Much may have happened in between. Looks come with a heartbeat, so one may be a heartbeat late, or left out.
    if (at - this.#observed > 2 * this.#interval + HEARTBEAT_MS) this.#stallDetector.forget();
    this.#observed = at;
    const ahead = observeStalls(this.#stallDetector, this.#attempt, this.#slot?.number ?? null, at);
    this.#skipped = this.#stallDetector.stalled(ahead.length, at);
  }

  #report({ onWaiting }: QueuedWaitOptions, position: number | null): void {
    const { uuids: wanted, count } = this.#gpuRequest;
    onWaiting?.({ gpus: reasonsOf(this.#attempt.candidates), wanted, position, count });
  }
}
