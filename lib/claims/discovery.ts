import {
  type Criteria,
  loadConfiguration,
  mergeCriteria,
  normalizeCriteria,
  refuseNoObject,
} from '../config/index.ts';
import { GPUOwnerError, type GPUReason } from '../errors.ts';
import {
  byPlace,
  type GPU,
  isInstance,
  isPossible,
  type LeaseInfo,
  select,
  type Verdict,
} from '../gpus/index.ts';
import { EXCLUSIVE, native, OFD } from '../native.ts';
import { type LockOwner, ownersOf, pathIn, readLink } from '../platform/index.ts';
import { findUnexplainedDecision } from './acquisition-lock.ts';
import type { NotGranted } from './claim.ts';
import { type Effectful, runAsync, runSync } from './effects.ts';
import {
  type Candidate,
  explainLocks,
  gpuRequestOf,
  listReasons,
  notEnough,
  reasonsOf,
  refuseImpossible,
  reserveForWaiters,
  scopeOf,
} from './evaluate.ts';
import { askForEnergy, type Idle, idleText, noteLooks } from './idle.ts';
import { intrudersOnLeased, LeaseHolders } from './intruders.ts';
import { latestStart } from './latest-start.ts';
import {
  FIRST_EPOCH,
  findUnexplained,
  isLocked,
  LEASE,
  type LockOwners,
  leaseNames,
  readHolder,
} from './lease-file.ts';
import { LockDirectory } from './lock-directory.ts';
import { type ClaimOptions, checkConventions, checkDirectory } from './options.ts';
import { leaseInfo, MAX_EPOCHS } from './record.ts';
import { type DiscoveryRequest, type Perspective, type Survey, survey } from './survey.ts';
import {
  activeWaiters,
  type QueuePosition,
  readWaiters,
  reservedFor,
  WAIT_QUEUE_FILE,
  type Waiter,
  WaitQueue,
  waitersAhead,
} from './wait-queue.ts';

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
  /** Whether it does nothing, as far as looks tell; null: it works, nobody knows, or it wasn't asked for (the library doesn't). */
  idle: Idle | null;
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
    configuredDirectory: configuration.lockDirectory,
    conventions: checkConventions(conventions, configuration, 'conventions'),
    count: 1,
  };
  return discovering(request, perspective);
}

/** As {@link getGPUs}, for a request that is checked already, and for people: it notes which GPUs do nothing, and says so. */
export async function discover(request: DiscoveryRequest, perspective: Perspective): Promise<GPUStatus[]> {
  return (await look(request, perspective)).gpus;
}

async function look(request: DiscoveryRequest, perspective: Perspective) {
  askForEnergy();
  const { candidates, directory } = await runAsync(explainedSurvey(request, perspective));
  const idle = noteLooks(
    directory,
    candidates.map(({ gpu }) => gpu),
  );
  const gpus = candidates.map((candidate) =>
    withIdle(statusOf(candidate), idle.get(candidate.gpu.uuid) ?? null),
  );
  return { gpus: withIntruders(gpus), directory };
}

/** A machine at one moment. */
export interface Observation {
  gpus: GPUStatus[];
  /** The first requests in the wait queue, in order. */
  queue: QueueEntry[];
  /** How many requests wait. */
  waiting: number;
}

/** All GPUs and the wait queue, with one look at the driver. @param maxEntries so many requests are read @throws as {@link getGPUs} */
export async function observe(request: DiscoveryRequest, maxEntries: number): Promise<Observation> {
  const { gpus, directory } = await look(request, 'machine');
  const queue = directory === null ? null : WaitQueue.open(directory);
  if (queue === null) return { gpus, queue: [], waiting: 0 };
  try {
    const slots = queue.slots();
    const waiters = [...queue.waiters(slots.slice(0, maxEntries))];
    const unread = Math.max(0, slots.length - maxEntries);
    return { gpus, queue: describeQueue(waiters, gpus), waiting: waiters.length + unread };
  } finally {
    queue.close();
  }
}

function* discovering(request: DiscoveryRequest, perspective: Perspective): Effectful<GPUStatus[]> {
  const { candidates } = yield* explainedSurvey(request, perspective);
  return candidates.map(statusOf);
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

/** Why a claim would take nothing now. `directory` is null where nobody has ever claimed. */
export type NotFound = Omit<NotGranted, 'directory' | 'record'> & {
  directory: LockDirectory | null;
};

/** Finds the GPUs that a claim without a wait would take, as far as that can be told without claiming. @throws as {@link getGPUs} */
export function* findForClaim(
  request: DiscoveryRequest,
  position: QueuePosition | null = null,
): Effectful<Found | NotFound> {
  const { count } = request;
  const { candidates, directory, job } = yield* explainedSurvey(request, 'claimant', position);
  const gpus = candidates.map(statusOf);
  const chosen = select(
    gpus.filter(({ state }) => state === 'free'),
    count,
  );
  const gpuRequest = gpuRequestOf(candidates, count, scopeOf(job?.epoch ?? null));
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
function* explainedSurvey(
  request: DiscoveryRequest,
  perspective: Perspective,
  position: QueuePosition | null = null,
): Effectful<Survey<LockDirectory | null>> {
  let ahead: readonly Waiter[] = [];
  // Who waits is read before the leases: a waiter who takes their GPUs meanwhile is seen there.
  const find: typeof LockDirectory.find = (...choice) => {
    const directory = LockDirectory.find(...choice);
    if (perspective === 'claimant') ahead = [...waitersAhead(directory, position)];
    return directory;
  };
  const found = yield* survey(request, find, perspective);
  const all = yield* explainLocks(found.candidates, found.context);
  const candidates = reserveForWaiters(all, scopeOf(found.context.job), ahead);
  return { ...found, candidates };
}

/** A lease of a GPU that does nothing says so. */
function withIdle(status: GPUStatus, idle: Idle | null): GPUStatus {
  const text = status.lease === null ? null : idleText(idle, status.lease.since);
  return { ...status, idle, reason: text === null ? status.reason : `${status.reason}, ${text}` };
}

/** A lease of a GPU on which others compute says so. */
function withIntruders(gpus: GPUStatus[]): GPUStatus[] {
  const holders = new LeaseHolders(gpus);
  return gpus.map((gpu) => {
    const { text } = intrudersOnLeased(gpu, gpus, holders);
    return text === null ? gpu : { ...gpu, reason: `${gpu.reason}; ${text}` };
  });
}

function statusOf({ gpu, verdict: { state, reason }, lease }: Candidate): GPUStatus {
  return { ...gpu, state, reason, lease, idle: null };
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
    computeMode: gpu.computeMode,
    displayActive: gpu.displayActive,
    migEnabled: gpu.migEnabled,
    migInstances: gpu.migInstances,
    processes: gpu.processes,
    lease: gpu.lease,
    idle: gpu.idle,
  };
}

/** A request in the wait queue. */
export interface QueueEntry extends Pick<LeaseInfo, 'user' | 'uid' | 'pid' | 'host' | 'command' | 'since'> {
  /** 1 is served first. */
  position: number;
  /** How many GPUs they wait for. */
  count: number;
  /** Its number, if it is a background job; its name and a remark; null: none. */
  job: number | null;
  name: string | null;
  note: string | null;
  /** Stopped (in a debugger, by Ctrl-Z) or stuck: skipped until it resumes. */
  stopped: boolean;
  /** ISO 8601: when it gets its GPUs at the latest, where time limits tell that, as a full minute; null: unknown, or it stops waiting before. */
  latestStart: string | null;
  /** ISO 8601: when it stops waiting; null: never. */
  waitUntil: string | null;
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
    configuredDirectory: configuration.lockDirectory,
    conventions: checkConventions(options.conventions, configuration, 'conventions'),
    count: 1,
  };
  return describeQueue(waiters, await discover(request, 'machine'));
}

const MINUTE_MS = 60_000;

/** @param waiters from the first on */
function describeQueue(waiters: readonly Waiter[], gpus: readonly GPUStatus[]): QueueEntry[] {
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
    const { user, uid, pid, host, command, since, job = null, name = null, note = null } = waiter.info;
    const { count, isSuspended: stopped } = waiter;
    const { waitUntil } = waiter;
    const latest = stopped ? Number.NaN : latestStart(waiter, waiters.slice(0, i), gpus, Date.now());
    // Whoever shows less than this must not promise more.
    const start = new Date(
      latest <= (waitUntil ?? latest) ? Math.ceil(latest / MINUTE_MS) * MINUTE_MS : Number.NaN,
    );
    return {
      position: i + 1,
      count,
      user,
      uid,
      pid,
      host,
      command,
      since,
      job,
      name,
      note,
      stopped,
      latestStart: Number.isNaN(start.getTime()) ? null : start.toISOString(),
      waitUntil: waitUntil === null ? null : new Date(waitUntil).toISOString(),
      waitingFor,
    };
  });
}

/** Behind all bytes that claims lock in any file, but those of the wait queue. */
const NOBODYS = FIRST_EPOCH + 2 * MAX_EPOCHS;

/** A lock that no claim has, or one that hasn't written who it is, and what it stands in the way of. */
export type UnexplainedLock = LockOwners & ({ of: 'lease'; uuid: string } | { of: 'decision' | 'queue' });

/** Locks of which nobody has written that they are theirs. So it is for a moment with every claim. */
export function findUnexplainedLocks(directory: LockDirectory): UnexplainedLock[] {
  const found: UnexplainedLock[] = [];
  for (const name of leaseNames(directory)) {
    const uuid = name.replace(/\..*$/, '');
    const lock = findUnexplained(directory, { uuid });
    if (lock !== null) found.push({ ...lock, of: 'lease', uuid });
  }
  const decision = findUnexplainedDecision(directory);
  if (decision !== null) found.push({ ...decision, of: 'decision' });
  for (const descriptor of directory.filesNamed(WAIT_QUEUE_FILE, [directory.path])) {
    if (native().lockProbe(descriptor, OFD, EXCLUSIVE, NOBODYS, 1) < 0) continue;
    const path = pathIn(directory.path, WAIT_QUEUE_FILE);
    found.push({ path, owners: ownersOf(descriptor, NOBODYS), of: 'queue' });
  }
  return found;
}

/** A lock whose record says whose it is. */
interface RecordedLock {
  of: 'lease' | 'queue';
  path: string;
  /** As the record says; anybody may have written it. */
  uid: number | null;
  user: string;
  pid: number | null;
  /** The processes that have the lock, as far as this user can see. */
  owners: readonly LockOwner[];
}

/** Leases and places in the wait queue. @param files as for `ownersOf` */
export function* findRecordedLocks(
  directory: LockDirectory,
  files: Parameters<typeof ownersOf>[2],
): Generator<RecordedLock> {
  for (const name of leaseNames(directory)) {
    for (const descriptor of directory.filesNamed(name)) {
      const record = isLocked(descriptor) ? readHolder(descriptor) : null;
      if (record === null) continue;
      const path = readLink(`/proc/self/fd/${descriptor}`) ?? name;
      yield { of: 'lease', path, ...leaseInfo(record), owners: ownersOf(descriptor, LEASE, files) };
    }
  }
  const queue = WaitQueue.open(directory);
  if (queue === null) return;
  try {
    const path = pathIn(directory.path, WAIT_QUEUE_FILE);
    for (const { slot, info } of queue.waiters(queue.slots())) {
      yield { of: 'queue', path, ...info, owners: ownersOf(queue.descriptor, slot, files) };
    }
  } finally {
    queue.close();
  }
}

/** The wait queue's file, if other programs have locked so much of it that nobody can join it. */
export function findDamagedQueue(directory: LockDirectory): string | null {
  const queue = WaitQueue.open(directory);
  const isDamaged = queue?.isDamaged === true;
  queue?.close();
  return isDamaged ? pathIn(directory.path, WAIT_QUEUE_FILE) : null;
}
