import { closeSync } from 'node:fs';
import { type ErrorCode, GPUOwnerError } from '../errors.ts';
import type { GPU } from '../gpus/index.ts';
import { errno, type NativeWait, native, OFD, SHARED } from '../native.ts';
import { formatDuration, now, sleeping, warnOnce } from '../platform/index.ts';
import { type Claim, claim, type NotGranted } from './claim.ts';
import { type Candidate, leaseKey } from './evaluate.ts';
import { type Found, findForClaim, type NotFound } from './find.ts';
import { askForEnergy, noteLooks } from './idle.ts';
import {
  type ClaimSteps,
  type EpochLock,
  findEpochLock,
  findEpochLocks,
  runAsync,
  takeSnapshot,
  untilEvent,
} from './locks/index.ts';
import type { ClaimRequest, DiscoveryRequest } from './options.ts';
import {
  HEARTBEAT_MS,
  type QueuePosition,
  readWaiters,
  Slot,
  StallDetector,
  WAITERS_PER_HEARTBEAT,
  type WaitHandover,
  WaitQueue,
} from './queue/index.ts';
import { QueuedWaiter, type QueuedWaitOptions } from './queued-waiter.ts';
import { canHelp, reasonsOf } from './refusal.ts';
import type { JoiningRequest } from './rules/index.ts';
import { freeOrKept, hasEnough, observeStalls, reserveForWaiters } from './waiters-ahead.ts';

export interface WaitOptions extends Omit<QueuedWaitOptions, 'end'> {
  /** ms; null: without limit */
  maxWait: number | null;
  /** Whether the driver has answered before, so that it is waited for where it is away. */
  wasThere?: boolean;
}

/** How often GPUs are looked at that others use without a lease: their end wakes no waiter. In ms. */
const USE_POLL_MS = 1_000;

/**
 * Between a lease and its epoch lies a moment in which there is nothing to wait on, and a lease may have ended since it was
 * seen: so the first look comes at once. Locks of other programs can make that last: then there are pauses, each twice as long as
 * the one before, up to LOOK_AGAIN. In ms.
 */
const MIN_POLL_MS = 5;

/** A limit for what should not happen: a change without a wake-up. In ms. */
const MAX_WAIT_MS = 60_000;
/** The same while a free GPU is kept for a request of connected GPUs, which may keep another set at any time. In ms. */
const MAX_KEPT_MS = 10_000;

/** Why a claim gets no GPUs, where that may change. */
const MAY_END: readonly ErrorCode[] = ['ERR_GPU_UNAVAILABLE', 'ERR_PLACEHOLDER'];

/** How often a driver is asked that was there before, and is away: its update, or a reset, takes some seconds. In ms. */
const DRIVER_POLL_MS = 1_000;

/**
 * Joins the wait queue, and claims as soon as possible. A driver that goes away meanwhile is waited for.
 * @param first the outcome of an attempt that was just made
 * @param end when the wait ends, as `now` tells it; earlier if attempts have been made before
 * @throws what `claim` throws, ERR_TIMEOUT, ERR_ABORTED
 */
export async function claimWhenFree(
  request: ClaimRequest,
  { maxWait, wasThere = false, ...options }: WaitOptions,
  first?: NotGranted,
  end = endOf(maxWait),
): Promise<Claim> {
  const { handover } = options;
  const received = handover?.take() ?? null;
  let slot = received === null ? null : Slot.resume(received.slot);
  let waiter = null as QueuedWaiter | null;
  let pause = 0;
  const began = received === null ? Date.now() : Date.parse(received.slot.since);
  /** Waits for a change after a failed attempt. */
  const claimOrWait = async (known: NotGranted | undefined): Promise<Claim | null> => {
    const own = slot === null ? null : { slot: slot.number, skipped: new Set<number>() };
    const position: QueuePosition | null = waiter?.position ?? own;
    const attempt = () => claim(request, position);
    const result = known ?? (await runAsync(attempt(), options.signal));
    if (result.granted) {
      const hasWaited = waiter !== null || received?.rest != null;
      return hasWaited ? { ...result, waitedMs: Math.max(0, Date.now() - began) } : result;
    }
    if (!MAY_END.includes(result.error.code)) throw result.error;
    const { directory, candidates, record } = result.attempt;
    const gpus = candidates.map(({ gpu }) => gpu);
    if (!canHelp(result.attempt)) throw driverError(gpus) ?? impossibleError(result);
    if (now() >= end) throw timeoutError(maxWait ?? 0, result);
    askForEnergy();
    noteLooks(directory, gpus);
    if (Number.isFinite(end)) record.waitUntil = Math.round(Date.now() + end - now());
    if (waiter === null) waiter = new QueuedWaiter(result, slot);
    else waiter.update(result);
    slot = null; // the waiter's by now
    if (handover?.isStale()) startAgain(result, waiter, handover, end);
    if (await waiter.waitForTurn({ ...options, end })) return null;
    waiter.preempt();
    let longest = end - now();
    // A state seen without the slot may be of a waiter that is gone, and has left its number to this one.
    const isCurrent = (position?.slot ?? null) === waiter.position.slot;
    // The first in order keeps Node.js, with all that it has loaded: one on a machine.
    if (handover !== undefined && (handover.isShown || !options.watched) && !waiter.isFirst) {
      const early = handover.earliestAtFront - now();
      if (early > 0) longest = Math.min(longest, early);
      else if (isCurrent) handOverAtFront(result, waiter, handover, end);
    }
    longest = Math.min(longest, waiter.untilNextLook());
    const change = { isCurrent, longest, pause, signal: options.signal, waiter };
    pause = (await waitForChange(result, change)) ? 0 : longerPause(pause);
    return null;
  };
  try {
    for (let known = first; ; known = undefined) {
      try {
        const claimed = await claimOrWait(known);
        if (claimed !== null) return claimed;
      } catch (error) {
        const isPatient = wasThere || waiter !== null || received !== null;
        if (!isPatient || !isDriverFailure(error) || now() >= end) throw error;
        warnOnce(`${error.message} The wait goes on until the driver answers again.`);
        await runAsync(sleeping(Math.min(DRIVER_POLL_MS, end - now())), options.signal);
      }
    }
  } finally {
    slot?.leave();
    waiter?.leave();
  }
}

/**
 * Finds the GPUs that a claim would take, as far as that can be told without claiming. Takes nothing.
 * @throws as {@link claimWhenFree}
 */
export async function findGPUs(request: DiscoveryRequest): Promise<Found> {
  const found = await runAsync(findForClaim(request));
  if (found.granted) return found;
  throw found.error;
}

/**
 * Refuses what this machine can never satisfy. Takes nothing, and doesn't wait. @returns the GPUs that would do
 * @throws as {@link findGPUs}
 */
export async function checkPossible(request: DiscoveryRequest): Promise<JoiningRequest> {
  const found = await runAsync(findForClaim(request));
  if (!found.granted && !canHelp(found.attempt)) throw impossibleError(found);
  return found.gpuRequest;
}

/** The time at which a wait of at most `maxWait` ends, if it begins now. */
export function endOf(maxWait: number | null): number {
  return maxWait === null ? Number.POSITIVE_INFINITY : now() + maxWait;
}

function longerPause(pause: number): number {
  return Math.min(Math.max(2 * pause, MIN_POLL_MS), USE_POLL_MS);
}

/** The driver's failure, where it has one for each GPU, and none is at fault; null: that isn't so. */
function driverError(gpus: readonly GPU[]): GPUOwnerError | null {
  const [first] = gpus;
  if (first === undefined || gpus.some(({ health }) => health !== 'failed')) return null;
  return new GPUOwnerError('ERR_DRIVER', first.healthReason ?? 'the NVIDIA driver does not answer');
}

/** Whether no GPU can be asked about, as the driver is being updated or reset. */
export function* isDriverAway(): ClaimSteps<boolean> {
  try {
    return driverError(yield* takeSnapshot()) !== null;
  } catch (error) {
    if (isDriverFailure(error)) return true;
    throw error;
  }
}

function isDriverFailure(error: unknown): error is GPUOwnerError {
  return error instanceof GPUOwnerError && ['ERR_DRIVER', 'ERR_NO_DRIVER'].includes(error.code);
}

function impossibleError({ error, attempt }: NotFound): GPUOwnerError {
  return new GPUOwnerError('ERR_GPU_UNAVAILABLE', `waiting would not help: ${error.message}`, {
    gpus: reasonsOf(attempt.candidates),
    cause: error,
  });
}

function timeoutError(maxWait: number, { error, attempt }: NotFound): GPUOwnerError {
  return new GPUOwnerError('ERR_TIMEOUT', `timed out after ${formatDuration(maxWait)}: ${error.message}`, {
    gpus: reasonsOf(attempt.candidates),
    cause: error,
  });
}

interface Changing {
  /** Whether those ahead were seen with the slot that the claimant has now. */
  isCurrent: boolean;
  /** In ms. */
  longest: number;
  /** After which to look again where nothing tells when a lease ends, in ms. */
  pause: number;
  signal: AbortSignal | undefined;
  waiter: QueuedWaiter;
}

/**
 * Resolves when a lease ends or a waiter ahead has what it waited for, when it is time to look again, or when time is up;
 * whichever comes first.
 * @returns whether the end of each lease could be waited for
 */
async function waitForChange(
  found: NotFound,
  { isCurrent, longest, pause, signal, waiter }: Changing,
): Promise<boolean> {
  const { directory } = found.attempt;
  const { epochLocks, ahead, isPolled, isComplete } = whatIsInTheWay(found);
  let seen = isComplete;
  const descriptors = epochLocks.map(({ descriptor }) => descriptor);
  const waits: NativeWait[] = [];
  try {
    await untilEvent(signal, (resolve, endings) => {
      const waitFor = ({ descriptor, byte }: EpochLock) => {
        const wait = new (native().Wait)(descriptor, OFD, SHARED, byte, 1, (error) => {
          if (error === 0) return resolve();
          if (error === errno.ECANCELED) return;
          // No thread can be had to wait with.
          seen = false;
          const timer = setTimeout(resolve, pause);
          endings.push(() => clearTimeout(timer));
        });
        waits.push(wait);
      };
      for (const epochLock of epochLocks) waitFor(epochLock);
      endings.push(waiter.watchBookings(resolve));
      // This waiter or a later one may have their numbers by now: it could wait for itself.
      if (!isCurrent && ahead.length > 0) return resolve();
      for (const slot of ahead) {
        const queue = directory === null ? null : WaitQueue.open(directory);
        if (queue === null) continue;
        descriptors.push(queue.descriptor);
        waitFor({ descriptor: queue.descriptor, byte: slot });
      }
      const limits = [longest, MAX_WAIT_MS];
      if (!isComplete) limits.push(pause);
      if (isPolled) limits.push(USE_POLL_MS);
      if (ahead.length > 0) limits.push(HEARTBEAT_MS); // a waiter ahead may be stopped
      const remainingMs = Math.min(...limits);
      if (remainingMs <= 0) return resolve();
      const timer = setTimeout(resolve, remainingMs);
      endings.push(() => clearTimeout(timer));
    });
  } finally {
    // The next in turn should look at once: the threads, one per GPU that is taken, end meanwhile.
    for (const wait of waits) wait.beginCancel();
    setImmediate(() => {
      for (const wait of waits) wait.cancel();
    });
    for (const descriptor of descriptors) closeSync(descriptor);
  }
  return seen;
}

/** Leaves the wait to a smaller process in place of this one, where only leases are in the way; returns otherwise. */
function handOverAtFront(
  notGranted: NotGranted,
  waiter: QueuedWaiter,
  handover: WaitHandover,
  end: number,
): void {
  const { epochLocks, ahead, isPolled, isComplete } = whatIsInTheWay(notGranted);
  const { kept } = waiter;
  if (kept !== null && isComplete && !isPolled) {
    const { directory, seenAt } = notGranted.attempt;
    const waiters = ahead.length > 0 ? [...readWaiters(directory, kept.number)] : [];
    const mayKeepOthers = waiters.some(({ slot, sets }) => sets !== undefined && ahead.includes(slot));
    const longest = mayKeepOthers ? MAX_KEPT_MS : MAX_WAIT_MS;
    const until = Math.min(end, now() + Math.min(longest, waiter.untilNextLook()));
    const change = { locks: epochLocks, ahead, movesOn: false, leases: [], seenAt, until };
    handover.handOver({ slot: kept, directory, ...change, end });
  }
  for (const { descriptor } of epochLocks) closeSync(descriptor);
}

/** Leaves the wait to the next process at once, which reads the request again; returns where that isn't possible. */
function startAgain(
  { attempt: { directory, seenAt } }: NotGranted,
  { kept }: QueuedWaiter,
  handover: WaitHandover,
  end: number,
): void {
  if (kept === null) return;
  const change = { locks: [], ahead: [], movesOn: false, leases: [], seenAt, until: now(), end };
  handover.handOver({ slot: kept, directory, ...change });
}

/** Between two attempts, in ms: most who wait take what they can have within some ms. */
const MIN_PAUSE_MS = 10;
const MAX_PAUSE_MS = 100;

/** Limit of a wait while slots keep changing hands, in ms: they can't be distinguished from waiters that come and go. */
const STALL_LIMIT_MS = 15_000;

/**
 * Stalls as seen by those who have no slot in the queue with those who have one: what these could use is left to them, but they have some
 * seconds only to take it. So a waiter that never does, which any user can forge, keeps no GPU idle.
 */
class UnqueuedStallDetector {
  readonly #stallDetector = new StallDetector();
  readonly position: QueuePosition & { skipped: Set<number> } = { slot: null, skipped: new Set() };

  /** After a failed attempt. @returns whether those who don't take what they could are all that is in the way */
  observe({ attempt, gpuRequest }: NotFound): boolean {
    const at = now();
    const waiters = observeStalls(this.#stallDetector, attempt, null, at);
    // Waiters, who look only once in a while, come first.
    const ahead =
      waiters.length < 2 ? 0 : (1 + Math.ceil(waiters.length / WAITERS_PER_HEARTBEAT)) * HEARTBEAT_MS;
    this.position.skipped = this.#stallDetector.stalled(waiters.length, at - ahead);
    const others = waiters.filter(({ slot }) => !this.#stallDetector.couldTake(slot));
    const open = freeOrKept(attempt.candidates).map(
      (each): Candidate => ({ ...each, verdict: { ...each.verdict, state: 'free' } }),
    );
    return hasEnough(reserveForWaiters(open, gpuRequest.scope, others), gpuRequest);
  }
}

/**
 * Claims without waiting for GPUs to come free, but for some seconds for waiters, where they could take what is free.
 * @throws as {@link claim}, ERR_GPU_UNAVAILABLE
 */
export function* claimAtOnce(request: ClaimRequest): ClaimSteps<Claim> {
  const stalls = new UnqueuedStallDetector();
  const started = now();
  for (let pause = MIN_PAUSE_MS; ; pause = Math.min(2 * pause, MAX_PAUSE_MS)) {
    const before = stalls.position.skipped.size;
    const result = yield* claim(request, stalls.position);
    if (result.granted) return result;
    if (now() - started > STALL_LIMIT_MS || !stalls.observe(result)) throw result.error;
    if (stalls.position.skipped.size <= before) yield* sleeping(pause);
  }
}

/** Upper bound on watched leases; each has a thread. */
const MAX_LOCKS = 64;

/** The obstacles of the first claimant in the queue. */
interface InTheWay {
  /** Leases to watch. The caller closes the descriptors. */
  epochLocks: EpochLock[];
  /** Slots of those who could use a part of what is free. */
  ahead: number[];
  /** GPUs are used without a lease, silent, or suspect. */
  isPolled: boolean;
  /** Called at the end of each lease. */
  isComplete: boolean;
}

function whatIsInTheWay({ attempt: { candidates, directory, job }, gpuRequest }: NotFound): InTheWay {
  const own = candidates.find(({ verdict }) => verdict.ownLeases !== undefined)?.verdict.ownLeases;
  // Only the end of a lease of one's own helps.
  if (own !== undefined && directory !== null) {
    const found = own.map((uuid) => findEpochLock(directory, { uuid }));
    const epochLocks = found.filter((each) => each !== null);
    return { epochLocks, ahead: [], isPolled: false, isComplete: epochLocks.length === found.length };
  }
  const epochLocks: EpochLock[] = [];
  const ahead = new Set<number>();
  let isPolled = false;
  // Others took the GPUs first, so there is nothing to wait for.
  let isComplete = !hasEnough(candidates, gpuRequest);
  for (const { gpu, verdict } of candidates) {
    if (verdict.state === 'busy' && verdict.bookedUntil === undefined) isPolled = true;
    if (verdict.silent || verdict.retryAt !== undefined) isPolled = true;
    if (verdict.keptFor !== undefined) {
      ahead.add(verdict.keptFor);
      continue;
    }
    // The end of the booking is waited for, not that of a lease.
    if (verdict.state !== 'leased' || verdict.bookedUntil !== undefined) continue;
    const found = directory === null ? null : findEpochLocks(directory, leaseKey(gpu, job));
    if (found === null) isComplete = false;
    else epochLocks.push(...found);
    if (epochLocks.length > MAX_LOCKS) {
      for (const { descriptor } of epochLocks.splice(MAX_LOCKS)) closeSync(descriptor);
      isComplete = false;
    }
  }
  return { epochLocks, ahead: [...ahead], isPolled, isComplete };
}
