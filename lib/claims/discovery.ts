import { loadConfiguration, mergeCriteria } from '../configuration.ts';
import { Conventions } from '../conventions/index.ts';
import { type Criteria, checkDevices, refuseNoObject, type Verdict } from '../gpus/criteria.ts';
import { inheritedClaim, inheritedDevices } from '../gpus/inherited-devices.ts';
import { byPlace, isInstance } from '../gpus/instances.ts';
import type { GPU, LeaseInfo } from '../gpus/types.ts';
import { judgeAll, keepBack, scopeOf } from './candidates.ts';
import type { ClaimRequest } from './claim.ts';
import { type Effectful, runAsync, runSync } from './effects.ts';
import { enclosingJob } from './enclosing-job.ts';
import { firstLook } from './first-look.ts';
import { leasesIn } from './foreign.ts';
import { waitersAhead } from './line.ts';
import { LockDirectory } from './lock-directory.ts';
import { type ClaimOptions, checkConventions, checkDirectory } from './options.ts';

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

function discoverFor(criteria: DiscoveryOptions, view: View): Effectful<GPUStatus[]> {
  refuseNoObject(criteria);
  const { lockDirectory: given, conventions, ...options } = criteria;
  const lockDirectory = checkDirectory(given, 'lockDirectory');
  const configuration = loadConfiguration();
  const request: Discovering = {
    criteria: mergeCriteria(options, configuration),
    lockDirectory,
    conventions: checkConventions(conventions, configuration, 'conventions'),
    count: 1,
  };
  return discover(request, configuration.lockDirectory, view);
}

/**
 * machine: every GPU as it is; claimant: those that an inherited CUDA_VISIBLE_DEVICES leaves out are excluded, in a job those
 * that it doesn't hold, and those that somebody in line could use are left to them.
 */
export type View = 'machine' | 'claimant';

/** What to look for, and where. */
export type Discovering = Pick<ClaimRequest, 'criteria' | 'lockDirectory' | 'conventions' | 'count'>;

/** @param configured the lock directory of the configuration, if it names one */
export function* discover(
  request: Discovering,
  configured: string | undefined,
  view: View,
): Effectful<GPUStatus[]> {
  const { criteria, lockDirectory, count } = request;
  const gpus = yield* firstLook(1);
  checkDevices(criteria, gpus);
  const directory = LockDirectory.find(lockDirectory, { lockDirectory: configured });
  const job = view === 'machine' ? null : (enclosingJob(directory, gpus)?.generation ?? null);
  const inherited = job === null ? inheritedDevices : inheritedClaim;
  const visible = view === 'machine' ? null : inherited(gpus);
  const conventions = new Conventions(job === null ? request.conventions : []);
  const foreign = yield* conventions.holders(gpus, leasesIn(directory));
  const judged = judgeAll(gpus, { criteria, visible, directory, job, count, foreign });
  const candidates =
    view === 'machine' ? judged : keepBack(judged, scopeOf(job), waitersAhead(directory, null));
  return candidates.map(({ gpu, verdict: { state, reason }, lease }) => ({
    ...gpu,
    state,
    reason,
    lease,
  }));
}
