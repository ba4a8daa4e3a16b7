import {
  askForEnergy,
  type ClaimOptions,
  type ClaimSteps,
  checkConventions,
  checkDirectory,
  type DiscoveryRequest,
  evaluateWithReasons,
  findIntruders,
  type GPUStatus,
  type Idle,
  noteLooks,
  type Perspective,
  requestLimits,
  runAsync,
  runSync,
  statusesOf,
} from '../claims/index.ts';
import { type Criteria, loadConfiguration, mergeCriteria, refuseNoObject } from '../config/index.ts';
import { byPlace, isInstance } from '../gpus/index.ts';
import { idleText } from '../platform/index.ts';
import type { ShownGPU } from '../shapes/index.ts';

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
    ...(perspective === 'machine' ? {} : requestLimits(configuration)),
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
  return {
    gpus: found.map(({ gpu, text }) => (text === null ? gpu : { ...gpu, reason: `${gpu.reason}; ${text}` })),
    intruders: new Map(found.map(({ gpu, pids }) => [gpu.uuid, pids])),
    directory,
  };
}

function* discovering(request: DiscoveryRequest, perspective: Perspective): ClaimSteps<GPUStatus[]> {
  const { candidates, directory } = yield* evaluateWithReasons(request, perspective);
  return statusesOf(candidates, directory, perspective);
}

/** A lease of a GPU that does nothing says so. */
function withIdle(status: GPUStatus, idle: Idle | null): GPUStatus {
  const text = status.lease === null ? null : idleText(idle, status.lease.since);
  return { ...status, idle, reason: text === null ? status.reason : `${status.reason}, ${text}` };
}

/** A GPU as `status --json` has it: scripts depend on these names. Unknown values are null. */
export function gpuJSON(gpu: GPUStatus): ShownGPU {
  const { health, healthReason, energyJoules, memoryErrors, ...shown } = gpu;
  // To a script, what may not be had is unavailable, for whichever reason.
  return { ...shown, state: gpu.state === 'excluded' ? 'unavailable' : gpu.state };
}
