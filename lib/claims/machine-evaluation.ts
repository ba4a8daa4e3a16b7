import { type Claimant, Conventions, type Leases } from '../conventions/index.ts';
import {
  checkDevices,
  type GPU,
  inheritedClaim,
  inheritedDevices,
  isInstance,
  KEEP_AWAKE,
  openDriver,
} from '../gpus/index.ts';
import { now, sleeping, warnOnce } from '../platform/index.ts';
import { type Evaluation, evaluateAll } from './evaluate.ts';
import {
  type ClaimSteps,
  findParentJob,
  isEpochHeld,
  isLeased,
  type LockDirectory,
  type RecordContents,
  readSuspects,
  runAsync,
  takeSnapshot,
  topologyOf,
  traceStep,
} from './locks/index.ts';
import type { ClaimRequest, DiscoveryRequest } from './options.ts';

/**
 * machine: every GPU as it is; claimant: those that an inherited CUDA_VISIBLE_DEVICES leaves out are excluded, in a job those that
 * it doesn't hold.
 */
export type Perspective = 'machine' | 'claimant';

/**
 * Looks at the GPUs, without regard to the wait queue. Takes nothing.
 *
 * @param open gives the lock directory: `LockDirectory.open` or `LockDirectory.find`
 * @throws ERR_INVALID_ARGUMENT for devices that this machine doesn't have, ERR_LOCK_DIRECTORY, ERR_NO_DRIVER, ERR_DRIVER
 */
export function* evaluateMachine<Directory extends LockDirectory | null>(
  request: DiscoveryRequest,
  open: (explicit: string | undefined, configuration: { lockDirectory: string | undefined }) => Directory,
  perspective: Perspective = 'claimant',
): ClaimSteps<Evaluation<Directory>> {
  const { criteria, count, bound } = request;
  const seenAt = now();
  openDriver(); // before anything is made in the file system
  const directory = open(request.lockDirectory, { lockDirectory: request.configuredDirectory });
  const gpus = yield* awaitDriverStartup(perspective === 'machine' ? ALL : count);
  traceStep('driver');
  checkDevices(criteria, gpus);
  const job = perspective === 'machine' ? null : findParentJob(directory, gpus);
  const inherited = job === null ? inheritedDevices : inheritedClaim;
  const visible =
    bound !== undefined ? new Set(bound.uuids) : perspective === 'machine' ? null : inherited(gpus);
  // The job's own marks would be in the way inside of it.
  const conventions = new Conventions(job === null ? request.conventions : []);
  const foreignHolders = yield* conventions.holders(gpus, leasesIn(directory));
  const suspects = readSuspects(directory);
  const leavesOut = perspective === 'claimant';
  const connections = request.isConnected === true ? topologyOf(directory, gpus) : null;
  const evaluation: Evaluation<Directory> = {
    ...{ request, seenAt, directory, job, visible, conventions, foreignHolders, suspects, leavesOut },
    ...{ connections, candidates: [] },
  };
  evaluation.candidates = evaluateAll(gpus, evaluation);
  return evaluation;
}

/** A snapshot of all GPUs, as soon as one can be told. Without the verdicts of {@link evaluateMachine}. @throws ERR_NO_DRIVER, ERR_DRIVER */
export function snapshotAfterStartup(onProgress?: () => void): Promise<GPU[]> {
  return runAsync(awaitDriverStartup(ALL, onProgress));
}

/** For those who show the machine. */
const ALL = Number.POSITIVE_INFINITY;
/** How long no GPU may have started where nothing keeps the driver awake, in ms: the driver starts GPUs one after the other. */
const STARTUP_TIMEOUT_MS = 10_000;
const STARTUP_POLL_MS = 100;
const STARTUP_NOTICE_MS = 2_000;

let startedUp = false;

/**
 * A snapshot that lets GPUs start up, at the first time in a process. Where nothing keeps the driver awake, each takes one to
 * three seconds: if more than half of them are silent, or more than can be spared, that is what is probably going on,
 * rather than a GPU that hangs. As long as the driver starts one after the other, it is waited for.
 * @param wanted how many GPUs the caller needs; ALL: those that answer, and those that start
 */
function* awaitDriverStartup(wanted: number, onProgress?: () => void): ClaimSteps<GPU[]> {
  const started = now();
  let [progressed, fewest, isStarting] = [started, ALL, false];
  for (;;) {
    const gpus = yield* takeSnapshot();
    const whole = gpus.filter((gpu) => !isInstance(gpu));
    const silent = whole.filter(({ health }) => health === 'not-responding').length;
    if (silent < fewest) {
      isStarting = fewest !== ALL;
      [progressed, fewest] = [now(), silent];
      onProgress?.();
    }
    const suffices = wanted === ALL ? !isStarting : gpus.length - silent >= Math.min(wanted, gpus.length);
    const enough = silent <= whole.length / 2 && suffices;
    if (silent === 0 || enough || startedUp || now() - progressed > STARTUP_TIMEOUT_MS) {
      startedUp = true;
      return gpus;
    }
    if (now() - started > STARTUP_NOTICE_MS) {
      warnOnce(`some GPUs don't answer yet: they may be starting up. ${KEEP_AWAKE}`);
    }
    yield* sleeping(STARTUP_POLL_MS);
  }
}

/** The leases, as other conventions ask for them. @param directory null: there are none yet */
function leasesIn(directory: LockDirectory | null): Leases {
  return {
    isLeased: (uuid) => directory !== null && isLeased(directory, { uuid }),
    isHeld: (uuid, epoch) => directory !== null && isEpochHeld(directory, uuid, epoch),
  };
}

/** A claim, as other conventions see it. */
export function claimantOf({
  directory,
  record,
  request: { lockTimeout, memory },
}: {
  directory: LockDirectory;
  record: RecordContents;
  request: Pick<ClaimRequest, 'lockTimeout' | 'memory'>;
}): Claimant {
  return {
    user: record.user,
    isShare: memory !== undefined,
    epoch: record.generation,
    ...leasesIn(directory),
    timeoutMs: lockTimeout,
  };
}
