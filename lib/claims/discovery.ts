import { loadConfiguration, mergeCriteria } from '../configuration.ts';
import { type ConventionChoice, Conventions } from '../conventions/index.ts';
import {
  type Criteria,
  checkDevices,
  type NormalizedCriteria,
  refuseNoObject,
  type Verdict,
} from '../gpus/criteria.ts';
import { inheritedDevices } from '../gpus/inherited-devices.ts';
import type { GPU, LeaseInfo } from '../gpus/types.ts';
import { judgeAll } from './candidates.ts';
import { firstLook } from './claim.ts';
import { type Effectful, runAsync, runSync } from './effects.ts';
import { leasesIn } from './foreign.ts';
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
 * All GPUs of the machine, in NVML's order, each with whether it is free for these criteria. Takes nothing, and never makes
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
 * The GPUs that this process could claim now, most free memory first; an inherited CUDA_VISIBLE_DEVICES counts. Somebody
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
    .sort((a, b) => (b.memory.freeBytes ?? -1) - (a.memory.freeBytes ?? -1) || a.index - b.index);
}

function discoverFor(criteria: DiscoveryOptions, view: View): Effectful<GPUStatus[]> {
  refuseNoObject(criteria);
  const { lockDirectory: given, conventions, ...options } = criteria;
  const lockDirectory = checkDirectory(given, 'lockDirectory');
  const configuration = loadConfiguration();
  return discover(
    mergeCriteria(options, configuration),
    lockDirectory,
    configuration.lockDirectory,
    view,
    checkConventions(conventions, configuration, 'conventions'),
  );
}

/** machine: every GPU as it is; claimant: those that an inherited CUDA_VISIBLE_DEVICES leaves out are excluded. */
export type View = 'machine' | 'claimant';

/** @param configured the lock directory of the configuration, if it names one */
export function* discover(
  criteria: NormalizedCriteria,
  lockDirectory: string | undefined,
  configured: string | undefined,
  view: View,
  conventions: ConventionChoice = 'auto',
): Effectful<GPUStatus[]> {
  const gpus = yield* firstLook(1);
  checkDevices(criteria, gpus);
  const directory = LockDirectory.find(lockDirectory, { lockDirectory: configured });
  const visible = view === 'machine' ? null : inheritedDevices(gpus);
  const foreign = yield* new Conventions(conventions).holders(gpus, leasesIn(directory));
  return judgeAll(gpus, { criteria, visible, directory, foreign }).map(
    ({ gpu, verdict: { state, reason }, lease }) => ({
      ...gpu,
      state,
      reason,
      lease,
    }),
  );
}
