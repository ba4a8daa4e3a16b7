import { type Criteria, loadConfiguration, mergeCriteria, refuseNoObject } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import {
  byPlace,
  cudaCode,
  describeSuspect,
  type GPU,
  type GPUState,
  isInstance,
  isPossible,
  type LeaseInfo,
  type Share,
  type Suspect,
} from '../gpus/index.ts';
import { idleText, isoTime, userName } from '../platform/index.ts';
import { applyBookings, type BookingInfo, bookingInfo, describeBooking, readBookings } from './bookings.ts';
import type { NotGranted } from './claim.ts';
import { type ClaimSteps, runAsync, runSync } from './effects.ts';
import { type Candidate, chooseFree, explainLocks, scopeOf } from './evaluate.ts';
import { askForEnergy, type Idle, noteLooks } from './idle.ts';
import { findIntruders } from './intruders.ts';
import { applyLimit, ownLimit } from './limits.ts';
import { LockDirectory } from './lock-directory.ts';
import {
  type DiscoveryRequest,
  evaluateMachine,
  type MachineEvaluation,
  type Perspective,
} from './machine-evaluation.ts';
import { type ClaimOptions, checkConventions, checkDirectory } from './options.ts';
import { listReasons, notEnough, reasonsOf, refuseImpossible } from './refusal.ts';
import { type QueuePosition, type Waiter, waitersAhead } from './wait-queue.ts';
import { gpuRequestOf, reserveForWaiters } from './waiters-ahead.ts';

/** A GPU with what keeps it from being claimed. */
export interface GPUStatus extends GPU {
  /**
   * free: it could be claimed now; leased: a claim or another tool holds it; shared: claims hold parts of its memory; busy: it is
   * used without a lease; unavailable: it can't be had as it is; excluded: it may not be had (configuration, CUDA_VISIBLE_DEVICES,
   * criteria).
   */
  state: GPUState;
  /** Words a person can act on; null when free, unless it is suspect. */
  reason: string | null;
  lease: LeaseInfo | null;
  /** The parts of its memory that are leased. */
  shares: readonly Share[];
  /**
   * Whether it does nothing, as far as looks tell; null: it works, it isn't known, or it wasn't asked for (the library
   * doesn't).
   */
  idle: Idle | null;
  /** The present booking of the GPU, else the next one; null: none. */
  booking: BookingInfo | null;
  /** CUDA failed on it within the last hour; null: no user saw that. Claims take such a GPU last. */
  suspect: SuspectInfo | null;
}

/** A GPU on which CUDA failed, as others see it. */
export interface SuspectInfo {
  code: number;
  /** As CUDA names the code; null: it has none. */
  name: string | null;
  /** When CUDA first failed there, ISO 8601. */
  since: string;
  /** The users whose claims failed. */
  seenBy: string[];
}

export interface DiscoveryOptions extends Criteria {
  lockDirectory?: string | undefined;
  /** As {@link ClaimOptions.conventions}. */
  conventions?: ClaimOptions['conventions'];
}

/**
 * All GPUs of the machine, in NVML's order, each followed by its MIG instances, each with whether it is free for these criteria. Takes nothing, and never makes
 * a claim fail.
 *
 * @throws {GPUOwnerError} ERR_NO_DRIVER, ERR_DRIVER, ERR_INVALID_ARGUMENT, ERR_CONFIGURATION, ERR_UNSUPPORTED_PLATFORM
 */
export function getGPUs(criteria: DiscoveryOptions = {}): Promise<GPUStatus[]> {
  return runAsync(discoverFor(criteria, 'machine'));
}

/** As {@link getGPUs}, blocking: microseconds as a rule, one to three seconds per GPU at first without persistence mode. */
export function getGPUsSync(criteria: DiscoveryOptions = {}): GPUStatus[] {
  return runSync(discoverFor(criteria, 'machine'));
}

/**
 * The GPUs that this process could claim now, most free memory first, suspect ones last, then MIG instances in the same order; an
 * inherited CUDA_VISIBLE_DEVICES counts. Another claim may be quicker: only a claim is a claim.
 *
 * @throws {GPUOwnerError} as {@link getGPUs}
 */
export async function findFreeGPUs(criteria: DiscoveryOptions = {}): Promise<GPUStatus[]> {
  return freeOnes(await runAsync(discoverFor(criteria, 'claimant')));
}

/** As {@link findFreeGPUs}, blocking. */
export function findFreeGPUsSync(criteria: DiscoveryOptions = {}): GPUStatus[] {
  return freeOnes(runSync(discoverFor(criteria, 'claimant')));
}

function freeOnes(gpus: readonly GPUStatus[]): GPUStatus[] {
  return gpus
    .filter(({ state }) => state === 'free')
    .sort(
      (a, b) =>
        Number(isInstance(a)) - Number(isInstance(b)) ||
        Number(a.suspect !== null) - Number(b.suspect !== null) ||
        (b.memory.freeBytes ?? -1) - (a.memory.freeBytes ?? -1) ||
        byPlace(a, b),
    );
}

function discoverFor(criteria: DiscoveryOptions, perspective: Perspective): ClaimSteps<GPUStatus[]> {
  refuseNoObject(criteria);
  const { lockDirectory: given, conventions, ...options } = criteria;
  const lockDirectory = checkDirectory(given, 'lockDirectory');
  const configuration = loadConfiguration();
  const request: DiscoveryRequest = {
    criteria: mergeCriteria(options, configuration),
    lockDirectory,
    configuredDirectory: configuration.lockDirectory,
    // To learn the user's groups may take a question to a directory service.
    ...(perspective === 'machine' ? {} : { most: ownLimit(configuration).gpus }),
    conventions: checkConventions(conventions, configuration, 'conventions'),
    count: 1,
  };
  return discovering(request, perspective);
}

/** As {@link getGPUs}, for a request that is checked already, and for people: it notes which GPUs do nothing, and says so. */
export async function discover(request: DiscoveryRequest, perspective: Perspective): Promise<GPUStatus[]> {
  return (await observeGPUs(request, perspective)).gpus;
}

/** As {@link discover}, with the processes that compute without a claim: their PIDs by the GPU's UUID. */
export async function observeGPUs(request: DiscoveryRequest, perspective: Perspective) {
  askForEnergy();
  const { candidates, directory } = await runAsync(evaluateWithReasons(request, perspective));
  const idle = noteLooks(
    directory,
    candidates.map(({ gpu }) => gpu),
  );
  const gpus = statusesOf(candidates, directory, perspective).map((status) =>
    withIdle(status, idle.get(status.uuid) ?? null),
  );
  const ofShares = candidates.flatMap(({ gpu, sharing }) =>
    sharing === undefined ? [] : [[gpu.uuid, sharing.pids] as const],
  );
  const found = findIntruders(gpus, new Map(ofShares));
  // A lease of a GPU on which others compute says so.
  const told = found.map(({ gpu, text }) =>
    text === null ? gpu : { ...gpu, reason: `${gpu.reason}; ${text}` },
  );
  const intruders = new Map(found.map(({ gpu, pids }) => [gpu.uuid, pids]));
  return { gpus: told, intruders, directory };
}

function* discovering(request: DiscoveryRequest, perspective: Perspective): ClaimSteps<GPUStatus[]> {
  const { candidates, directory } = yield* evaluateWithReasons(request, perspective);
  return statusesOf(candidates, directory, perspective);
}

/** The GPUs that a claim would take now. */
export interface Found {
  granted: true;
  chosen: GPU[];
  /** All GPUs. */
  gpus: GPUStatus[];
  /** The GPUs that would do. */
  gpuRequest: NotGranted['gpuRequest'];
}

/** Why a claim would take nothing now. `directory` is null before the first claim on the machine. */
export type NotFound = Omit<NotGranted, 'directory' | 'record' | 'seenAt'> & {
  directory: LockDirectory | null;
};

/** Finds the GPUs that a claim without a wait would take, as far as that can be told without claiming. @throws as {@link getGPUs} */
export function* findForClaim(
  request: DiscoveryRequest,
  position: QueuePosition | null = null,
): ClaimSteps<Found | NotFound> {
  const { count } = request;
  const { candidates, directory, job } = yield* evaluateWithReasons(request, 'claimant', position);
  const gpus = statusesOf(candidates, directory, 'claimant');
  const chosen = chooseFree(candidates, count);
  const gpuRequest = gpuRequestOf(candidates, request, scopeOf(job?.epoch ?? null));
  if (chosen !== null) return { granted: true, chosen, gpus, gpuRequest };
  const reasons = reasonsOf(candidates);
  const verdicts = candidates.map(({ verdict }) => verdict);
  refuseImpossible(count, verdicts, () => reasons);
  const message = notEnough(count, verdicts) + listReasons(reasons);
  const error = new GPUOwnerError('ERR_GPU_UNAVAILABLE', message, { gpus: reasons });
  return {
    granted: false,
    candidates,
    directory,
    job,
    gpuRequest,
    possible: isPossible(count, verdicts),
    error,
  };
}

/** With what the kernel tells of locks. To a claimant, GPUs that a waiter could use are left to them. */
function* evaluateWithReasons(
  request: DiscoveryRequest,
  perspective: Perspective,
  position: QueuePosition | null = null,
): ClaimSteps<MachineEvaluation<LockDirectory | null>> {
  let ahead: readonly Waiter[] = [];
  // The wait queue is read before the leases: a waiter that takes GPUs meanwhile is seen there.
  const find: typeof LockDirectory.find = (...choice) => {
    const directory = LockDirectory.find(...choice);
    if (perspective === 'claimant') ahead = [...waitersAhead(directory, position)];
    return directory;
  };
  const found = yield* evaluateMachine(request, find, perspective);
  const all = yield* explainLocks(found.candidates, found.context);
  const isLimited = perspective === 'claimant' && found.job === null;
  const open = isLimited ? applyBookings(all, request, found.directory) : all;
  const left = reserveForWaiters(open, scopeOf(found.context.job), ahead);
  const candidates = isLimited ? applyLimit(left, request, found.directory) : left;
  return { ...found, candidates };
}

/** A lease of a GPU that does nothing says so. */
function withIdle(status: GPUStatus, idle: Idle | null): GPUStatus {
  const text = status.lease === null ? null : idleText(idle, status.lease.since);
  return { ...status, idle, reason: text === null ? status.reason : `${status.reason}, ${text}` };
}

function statusesOf(
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
      reason: [...(verdict.reason === null ? [] : [verdict.reason]), ...doubt].join('; ') || null,
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

/** A GPU that is booked now says so, also where another user's job still runs on it. */
function withBooking(status: GPUStatus): GPUStatus {
  const { booking, state, reason, lease, shares } = status;
  if (booking === null || Date.parse(booking.from) > Date.now()) return status;
  const text = describeBooking(booking);
  if (state === 'free') return { ...status, state: 'leased', reason: text };
  const holders = lease === null ? shares : [lease];
  if (holders.every(({ user }) => user === booking.user)) return status;
  return { ...status, reason: `${reason}; ${text}` };
}

/** A GPU as `status --json` has it: scripts depend on these names. Unknown values are null. */
export function gpuJSON(gpu: GPUStatus) {
  return {
    index: gpu.index,
    instance: gpu.instance,
    uuid: gpu.uuid,
    parent: gpu.parent,
    name: gpu.name,
    pciBusId: gpu.pciBusId,
    // To a script, what may not be had is unavailable, for whichever reason.
    state: gpu.state === 'excluded' ? 'unavailable' : gpu.state,
    reason: gpu.reason,
    memory: {
      totalBytes: gpu.memory.totalBytes,
      usedBytes: gpu.memory.usedBytes,
      freeBytes: gpu.memory.freeBytes,
      reservedBytes: gpu.memory.reservedBytes,
    },
    powerWatts: gpu.powerWatts,
    powerLimitWatts: gpu.powerLimitWatts,
    utilizationPercent: gpu.utilizationPercent,
    temperatureCelsius: gpu.temperatureCelsius,
    memoryRepairPending: gpu.memoryRepairPending ?? null,
    computeMode: gpu.computeMode,
    displayActive: gpu.displayActive,
    migEnabled: gpu.migEnabled,
    migInstances: gpu.migInstances,
    processes: gpu.processes,
    lease: gpu.lease,
    shares: gpu.shares,
    idle: gpu.idle,
    booking: gpu.booking,
    suspect: gpu.suspect,
  };
}
