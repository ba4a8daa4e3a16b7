import {
  type Criteria,
  loadConfiguration,
  mergeCriteria,
  normalizeCriteria,
  refuseNoObject,
} from '../config/index.ts';
import { Conventions } from '../conventions/index.ts';
import { GPUOwnerError, type GPUReason } from '../errors.ts';
import {
  byPlace,
  checkDevices,
  type GPU,
  inheritedClaim,
  inheritedDevices,
  isInstance,
  isPossible,
  type LeaseInfo,
  select,
  type Verdict,
} from '../gpus/index.ts';
import type { ClaimRequest, Refusal } from './claim.ts';
import { listReasons, notEnough, refuseImpossible } from './claim-errors.ts';
import { awaitDriverStartup } from './driver-startup.ts';
import { type Effectful, runAsync, runSync } from './effects.ts';
import {
  type Candidate,
  evaluateAll,
  explainLocks,
  gpuRequestOf,
  reasonsOf,
  reserveForWaiters,
  scopeOf,
} from './evaluate.ts';
import { reservedFor } from './fairness.ts';
import { leasesIn } from './interop-context.ts';
import { LockDirectory } from './lock-directory.ts';
import { type ClaimOptions, checkConventions, checkDirectory } from './options.ts';
import { findParentJob, type ParentJob } from './parent-job.ts';
import { activeWaiters, type QueuePosition, readWaiters, waitersAhead } from './wait-queue.ts';

/** A GPU with what keeps it from being claimed. */
export interface GPUStatus extends GPU {
  /**
   * free: it could be claimed now; leased: somebody holds it; busy: it is used without a lease; unavailable: it can't be had
   * as it is; excluded: it may not be had (configuration, CUDA_VISIBLE_DEVICES, criteria).
   */
  state: Verdict['state'];
  /** Words a person can act on; null when free. */
  reason: string | null;
  lease: LeaseInfo | null;
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
 * The GPUs that this process could claim now, most free memory first, then MIG instances in the same order; an inherited CUDA_VISIBLE_DEVICES counts. Somebody
 * else may be quicker: only a claim is a claim.
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
        (b.memory.freeBytes ?? -1) - (a.memory.freeBytes ?? -1) ||
        byPlace(a, b),
    );
}

function discoverFor(criteria: DiscoveryOptions, perspective: Perspective): Effectful<GPUStatus[]> {
  refuseNoObject(criteria);
  const { lockDirectory: given, conventions, ...options } = criteria;
  const lockDirectory = checkDirectory(given, 'lockDirectory');
  const configuration = loadConfiguration();
  const request: DiscoveryRequest = {
    criteria: mergeCriteria(options, configuration),
    lockDirectory,
    conventions: checkConventions(conventions, configuration, 'conventions'),
    count: 1,
  };
  return discover(request, configuration.lockDirectory, perspective);
}

/**
 * machine: every GPU as it is; claimant: those that an inherited CUDA_VISIBLE_DEVICES leaves out are excluded, in a job those
 * that it doesn't hold, and those that a waiter could use are left to them.
 */
export type Perspective = 'machine' | 'claimant';

/** The GPUs to look for, and the locks that count. */
export type DiscoveryRequest = Pick<ClaimRequest, 'criteria' | 'lockDirectory' | 'conventions' | 'count'>;

/** @param configured the lock directory of the configuration, if it names one */
export function* discover(
  request: DiscoveryRequest,
  configured: string | undefined,
  perspective: Perspective,
): Effectful<GPUStatus[]> {
  const { candidates } = yield* evaluateMachine(request, configured, perspective);
  return candidates.map(statusOf);
}

/** The GPUs that a claim would take now. */
export interface Found {
  granted: true;
  chosen: GPU[];
  /** All GPUs. */
  gpus: GPUStatus[];
}

/** Why a claim would take nothing now. `directory` is null where nobody has ever claimed. */
export type NotFound = Omit<Refusal, 'directory' | 'record'> & {
  directory: LockDirectory | null;
};

/** Finds the GPUs that a claim without a wait would take, as far as that can be told without claiming. @throws as {@link getGPUs} */
export function* findForClaim(
  request: DiscoveryRequest,
  configured: string | undefined,
  position: QueuePosition | null = null,
): Effectful<Found | NotFound> {
  const { count } = request;
  const found = yield* evaluateMachine(request, configured, 'claimant', position);
  const { candidates } = found;
  const gpus = candidates.map(statusOf);
  const chosen = select(
    gpus.filter(({ state }) => state === 'free'),
    count,
  );
  if (chosen !== null) return { granted: true, chosen, gpus };
  const reasons = reasonsOf(candidates);
  const verdicts = candidates.map(({ verdict }) => verdict);
  refuseImpossible(count, verdicts, () => reasons);
  const message = notEnough(count, verdicts) + listReasons(reasons);
  const error = new GPUOwnerError('ERR_GPU_UNAVAILABLE', message, { gpus: reasons });
  const gpuRequest = gpuRequestOf(candidates, count, scopeOf(found.job?.generation ?? null));
  return { granted: false, ...found, gpuRequest, possible: isPossible(count, verdicts), error };
}

interface Judged {
  candidates: Candidate[];
  directory: LockDirectory | null;
  job: ParentJob | null;
}

function* evaluateMachine(
  request: DiscoveryRequest,
  configured: string | undefined,
  perspective: Perspective,
  position: QueuePosition | null = null,
): Effectful<Judged> {
  const { criteria, lockDirectory, count } = request;
  const gpus = yield* awaitDriverStartup(1);
  checkDevices(criteria, gpus);
  const directory = LockDirectory.find(lockDirectory, { lockDirectory: configured });
  const enclosing = perspective === 'machine' ? null : findParentJob(directory, gpus);
  const job = enclosing?.generation ?? null;
  const inherited = job === null ? inheritedDevices : inheritedClaim;
  const visible = perspective === 'machine' ? null : inherited(gpus);
  const conventions = new Conventions(job === null ? request.conventions : []);
  const foreign = yield* conventions.holders(gpus, leasesIn(directory));
  const judging = { criteria, visible, directory, job, count, foreign };
  const all = yield* explainLocks(evaluateAll(gpus, judging), judging);
  const candidates =
    perspective === 'machine' ? all : reserveForWaiters(all, scopeOf(job), waitersAhead(directory, position));
  return { candidates, directory, job: enclosing };
}

function statusOf({ gpu, verdict: { state, reason }, lease }: Candidate): GPUStatus {
  return { ...gpu, state, reason, lease };
}

/** A request in the wait queue. */
export interface QueueEntry extends Pick<LeaseInfo, 'user' | 'uid' | 'pid' | 'host' | 'command' | 'since'> {
  /** 1 is served first. */
  position: number;
  /** How many GPUs they wait for. */
  count: number;
  /** Stopped (in a debugger, by Ctrl-Z) or stuck: skipped until it resumes. */
  stopped: boolean;
  /** The GPUs that would do, each with what is in the way. */
  waitingFor: GPUReason[];
}

/** Where to look, and whose locks count. */
export type QueueOptions = Pick<ClaimOptions, 'lockDirectory' | 'conventions'>;

/** The wait queue of this machine, in order. Takes nothing. @throws as `getGPUs` */
export async function getQueue(options: QueueOptions = {}): Promise<QueueEntry[]> {
  refuseNoObject(options);
  const configuration = loadConfiguration();
  const lockDirectory = checkDirectory(options.lockDirectory, 'lockDirectory');
  const directory = LockDirectory.find(lockDirectory, configuration);
  const waiters = [...readWaiters(directory)];
  if (waiters.length === 0) return [];
  const request = {
    criteria: normalizeCriteria({}),
    lockDirectory,
    conventions: checkConventions(options.conventions, configuration, 'conventions'),
    count: 1,
  };
  const gpus = await runAsync(discover(request, configuration.lockDirectory, 'machine'));
  return waiters.map((waiter, i) => {
    const reserved = reservedFor(waiter.uuids, waiter.scope, activeWaiters(waiters.slice(0, i)));
    const waitingFor = gpus
      .filter(({ uuid }) => waiter.uuids.includes(uuid))
      .map(({ index, instance, uuid, reason }) => {
        const before = reserved.get(uuid);
        const position = before === undefined ? 0 : waiters.findIndex(({ slot }) => slot === before.slot) + 1;
        return {
          index,
          ...(instance === null ? {} : { instance }),
          uuid,
          reason:
            reason ??
            (position > 0 ? `free, but position ${position} in the wait queue comes first` : 'free'),
        };
      });
    const { user, uid, pid, host, command, since } = waiter.info;
    const { count, isSuspended: stopped } = waiter;
    return { position: i + 1, count, user, uid, pid, host, command, since, stopped, waitingFor };
  });
}
