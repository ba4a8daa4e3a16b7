// A claim that takes nothing: each GPU with its state and reasons, and the GPUs that would be taken.
import { cudaCode, describeSuspect, type GPU, type GPUState, type Suspect } from '../gpus/index.ts';
import { isoTime, userName } from '../platform/index.ts';
import type { ShownGPU, SuspectInfo } from '../shapes/index.ts';
import type { NotGranted } from './claim.ts';
import { type Candidate, chooseFree, type Evaluation, explainLocks, topologyFor } from './evaluate.ts';
import { type ClaimSteps, LockDirectory } from './locks/index.ts';
import { evaluateMachine, type Perspective } from './machine-evaluation.ts';
import type { DiscoveryRequest } from './options.ts';
import { bookingInfo, describeBooking, readBookings, type Waiter, waitersAhead } from './queue/index.ts';
import { asked, refuseImpossible, unavailable } from './refusal.ts';
import { gpuRequestOf, leaveToOthers } from './waiters-ahead.ts';

/** A GPU with what keeps it from being claimed. */
export interface JudgedGPU extends Omit<ShownGPU, 'state'> {
  /** As in {@link ShownGPU}; excluded: it may not be had (configuration, CUDA_VISIBLE_DEVICES, criteria). */
  state: GPUState;
}
export interface GPUStatus extends JudgedGPU, GPU {}

/** The GPUs that a claim would take now. */
export interface Found {
  granted: true;
  chosen: GPU[];
  /** All GPUs. */
  gpus: GPUStatus[];
  /** The GPUs that would do. */
  gpuRequest: NotGranted['gpuRequest'];
}

/** Why a claim would take nothing now. */
export type NotFound = NotGranted<Evaluation>;

/** Finds the GPUs that a claim without a wait would take, as far as that can be told without claiming. @throws as {@link getGPUs} */
export function* findForClaim(request: DiscoveryRequest): ClaimSteps<Found | NotFound> {
  const attempt = yield* evaluateWithReasons(request, 'claimant');
  const chosen = chooseFree(attempt, topologyFor(attempt));
  const gpuRequest = gpuRequestOf(attempt);
  if (chosen !== null) {
    const gpus = statusesOf(attempt.candidates, attempt.directory, 'claimant');
    return { granted: true, chosen, gpus, gpuRequest };
  }
  refuseImpossible(...asked(attempt));
  return { granted: false, attempt, gpuRequest, error: unavailable(attempt, false) };
}

/** With what the kernel tells of locks. To a claimant, GPUs that a waiter could use are left to them. */
export function* evaluateWithReasons(
  request: DiscoveryRequest,
  perspective: Perspective,
): ClaimSteps<Evaluation> {
  let ahead: readonly Waiter[] = [];
  // The wait queue is read before the leases: a waiter that takes GPUs meanwhile is seen there.
  const find: typeof LockDirectory.find = (...choice) => {
    const directory = LockDirectory.find(...choice);
    if (perspective === 'claimant') ahead = [...waitersAhead(directory, null)];
    return directory;
  };
  const found = yield* evaluateMachine(request, find, perspective);
  found.candidates = yield* explainLocks(found);
  if (perspective === 'claimant') found.candidates = leaveToOthers(found, () => ahead);
  return found;
}

export function statusesOf(
  candidates: readonly Candidate[],
  directory: LockDirectory | null,
  perspective: Perspective,
): GPUStatus[] {
  const bookings = readBookings(directory);
  return candidates.map(({ gpu, verdict, lease, sharing, suspect }) => {
    const isShared = verdict.state === 'leased' && lease === null && (sharing?.taken ?? 0) > 0;
    const doubt = suspect === undefined || verdict.retryAt !== undefined ? [] : [describeSuspect(suspect)];
    const status: GPUStatus = {
      ...gpu,
      state: isShared ? 'shared' : verdict.state,
      reason: [verdict.reason ?? '', ...doubt].filter(Boolean).join('; ') || null,
      lease,
      shares: sharing?.shares ?? [],
      idle: null,
      booking: bookingInfo(gpu, bookings),
      suspect: suspect === undefined ? null : suspectInfo(suspect),
    };
    return perspective === 'machine' ? withBooking(status) : status;
  });
}

function suspectInfo({ code, since, uids }: Suspect): SuspectInfo {
  return { code, name: cudaCode(code).name, since: isoTime(since), seenBy: uids.map(userName) };
}

/** A free GPU that is booked now is kept for that. */
function withBooking(status: GPUStatus): GPUStatus {
  const { booking, state } = status;
  if (state !== 'free' || booking === null || Date.parse(booking.from) > Date.now()) return status;
  return { ...status, state: 'leased', reason: describeBooking(booking) };
}
