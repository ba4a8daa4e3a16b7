import { type DecisionGuard, type Mark, removeMark } from '../conventions/index.ts';
import { GPUOwnerError } from '../errors.ts';
import {
  cpusNear,
  type GPU,
  type LeaseInfo,
  SHARE_UNIT_BYTES,
  type Suspect,
  type Topology,
} from '../gpus/index.ts';
import { bootId, now, sleeping, warnOnce } from '../platform/index.ts';
import {
  applyProblem,
  type Candidate,
  chooseFree,
  type Evaluation,
  evaluateAll,
  evaluateOne,
  explainLocks,
  leaseKey,
  setsFor,
  topologyFor,
} from './evaluate.ts';
import {
  AcquisitionLock,
  type ClaimSteps,
  demandOf,
  type JobSecret,
  Lease,
  LockDirectory,
  makeJobFile,
  nameGPUs,
  newJobSecret,
  ownRecord,
  type ParentJob,
  type RecordContents,
  type ShareDemand,
  sharingOf,
  takeSnapshot,
  topologyOf,
  traceStep,
} from './locks/index.ts';
import { claimantOf, evaluateMachine } from './machine-evaluation.ts';
import type { ClaimRequest } from './options.ts';
import {
  exceedsLimit,
  noteGranted,
  type QueuePosition,
  waitersAhead,
  wakeThoseBehind,
} from './queue/index.ts';
import { asked, refuseImpossible, unavailable } from './refusal.ts';
import { type JoiningRequest, mostUsable } from './rules/index.ts';
import { gpuRequestOf, leaveToOthers } from './waiters-ahead.ts';

/** GPUs that are leased by this process. */
export interface Claim {
  granted: true;
  /** By index. */
  gpus: GPU[];
  leases: Lease[];
  /** Show users of other conventions that the GPUs are ours. */
  marks: Mark[];
  /** Proves to claims inside the job that they are; null: there can be none. */
  jobFile: Mark | null;
  /** Keeps others from looking for free GPUs; to be left when these can be seen to be taken. */
  entry: DecisionGuard;
  directory: LockDirectory;
  /** The job whose GPUs these are, in which this process runs; null: they were taken from the machine. */
  job: ParentJob | null;
  /** When the leases were taken, in ms since 1970. */
  leasedAt: number;
  /** When the GPUs were last looked at, on the monotonic clock. */
  seenAt: number;
  /** All GPUs of the machine as last seen. */
  all: GPU[];
  /** How long the claim was in the wait queue, in ms; missing: it wasn't. */
  waitedMs?: number;
  /** The processors near the GPUs, '0-31,64-95'; missing: the command isn't bound to them, or the driver doesn't tell. */
  cpus?: string;
  /** CUDA failed lately on these GPUs. */
  suspects: ReadonlyMap<string, Suspect>;
}

/** An attempt to claim GPUs: the machine as it is for the request, and what this claimant writes for others to read. */
export interface Attempt extends Evaluation<LockDirectory> {
  readonly request: ClaimRequest;
  /** The claimant's own place in the wait queue; null: it has none. */
  readonly position: QueuePosition | null;
  /** null: no claims can be made inside of this one. */
  readonly secret: JobSecret | null;
  readonly record: RecordContents;
  /** null: unknown, or there was no choice when the attempt began. */
  topology: Topology | null;
}

/** Nothing is held. The obstacles are in the attempt, for a caller that wants to wait for their end. */
export interface NotGranted<Seen extends Evaluation = Attempt> {
  granted: false;
  attempt: Seen;
  /** The GPUs to wait for. */
  gpuRequest: JoiningRequest;
  /** ERR_GPU_UNAVAILABLE with the reason for each GPU, or ERR_LOCK_DIRECTORY, or ERR_PLACEHOLDER where CUDA fails on all */
  error: GPUOwnerError;
}

/** How long what is left of a dead owner may keep its GPU from being claimed, in ms. */
const REMAINS_TIMEOUT_MS = 2_000;
const MAX_PAUSE_MS = 64;
/** How long to try again while others take GPUs from under this claim, in ms. */
const CONTENTION_TIMEOUT_MS = 5_000;

/**
 * Leases `count` GPUs that satisfy the criteria, all or none. GPUs that other waiters could use are left to them.
 *
 * @param position the claimant's own place in the wait queue; null: it has none
 * @throws ERR_INVALID_ARGUMENT for what this machine can never satisfy, ERR_LOCK_DIRECTORY, ERR_NO_DRIVER, ERR_DRIVER,
 *   ERR_ABORTED; nothing is held then
 */
export function* claim(
  request: ClaimRequest,
  position: QueuePosition | null = null,
): ClaimSteps<Claim | NotGranted> {
  traceStep('start');
  const evaluation = yield* evaluateMachine(request, LockDirectory.open);
  const { directory, job, conventions, suspects } = evaluation;
  refuseImpossible(...asked(evaluation));
  // Also shows whose the leases are.
  const secret = request.isJob || job === null ? newJobSecret() : null;
  const record = recordFor(request, job, secret);
  const attempt: Attempt = { ...evaluation, request, position, secret, record, topology: null };
  let gpus = attempt.candidates.map(({ gpu }) => gpu);

  judgeAvailable(attempt);
  attempt.topology = topologyFor(attempt); // before the decision lock: the driver may be asked
  // No other claimant needs to be waited for, or to wait: there is nothing to decide about.
  if (obstacleOf(attempt) === 'use') return yield* refuse(attempt);

  const started = now();
  for (let pause = 1; ; pause = Math.min(2 * pause, MAX_PAUSE_MS)) {
    const began = now(); // a process that is suspended in the middle shall not have tried once only
    const entry = yield* conventions.enter(claimantOf(attempt));
    let outcome: Decision | undefined;
    try {
      const lock = yield* AcquisitionLock.take(directory, request.lockTimeout, record);
      try {
        traceStep('acquisition-lock');
        outcome = yield* decide(gpus, attempt);
        if (outcome.leases !== null && job === null)
          noteGranted(directory, record, gpuRequestOf(attempt), position);
      } finally {
        lock.release();
      }
    } finally {
      if (!outcome?.leases) entry.leave();
    }
    traceStep('unlocked');
    if (outcome.leases !== null) {
      const { gpus, all } = outcome;
      if (job === null && isLimited(request)) wakeThoseBehind(directory, gpus.length, position?.slot ?? null);
      const cpus = request.bindsCPUs === true ? cpusNear(topologyOf(directory, all), gpus) : null;
      if (request.bindsCPUs === true && cpus === null)
        warnOnce(
          "--cpu-bind: the driver doesn't tell which processors are near the GPUs, so the command may use all.",
        );
      const where = { entry, directory, job, suspects, ...(cpus === null ? {} : { cpus }) };
      return { granted: true, ...outcome, ...where };
    }
    const timeout = outcome.obstacle === 'remains' ? REMAINS_TIMEOUT_MS : CONTENTION_TIMEOUT_MS;
    if (outcome.obstacle === 'use' || began - started > timeout) {
      return yield* refuse(attempt, outcome.obstacle === 'contention');
    }
    // Random, so that claimants who met do not meet again.
    yield* sleeping(outcome.obstacle === 'remains' ? pause : 1 + Math.random() * 20);
    gpus = yield* takeSnapshot();
  }
}

function recordFor(
  { command, limitMs, about, class: own }: ClaimRequest,
  job: ParentJob | null,
  secret: JobSecret | null,
): RecordContents {
  const record = { ...ownRecord(bootId(), command, secret?.epoch), limitMs, ...about };
  return own === 'preemptible' && job === null ? { ...record, preemptible: true } : record;
}

/** @param isOutrun other claims took the GPUs first each time */
function* refuse(attempt: Attempt, isOutrun = false): ClaimSteps<NotGranted> {
  attempt.candidates = yield* explainLocks(attempt);
  return {
    granted: false,
    attempt,
    gpuRequest: gpuRequestOf(attempt),
    error: unavailable(attempt, isOutrun),
  };
}

type Decision =
  | Pick<Claim, 'leases' | 'marks' | 'jobFile' | 'gpus' | 'all' | 'leasedAt' | 'seenAt'>
  | {
      leases: null;
      /** use: others have them; remains: a dead owner may still show; contention: another claimant took them first. */
      obstacle: 'use' | 'remains' | 'contention';
    };

/** Judges the GPUs under the decision lock, takes some, and confirms that they are still free. */
function* decide(gpus: readonly GPU[], attempt: Attempt): ClaimSteps<Decision> {
  attempt.foreignHolders = yield* attempt.conventions.holders(gpus, claimantOf(attempt), true);
  judgeAvailable(attempt, gpus);
  for (;;) {
    const chosen = chooseFree(attempt, attempt.topology);
    if (chosen === null) return { leases: null, obstacle: obstacleOf(attempt) };
    traceStep('chosen');
    const taken = takeLeases(chosen, attempt);
    if (taken.error !== undefined) {
      const { uuid, error } = taken;
      attempt.candidates = attempt.candidates.map((each) =>
        each.gpu.uuid === uuid ? applyProblem({ ...each, problem: error }) : each,
      );
      continue;
    }
    if (taken.leases === null) return { leases: null, obstacle: 'contention' };
    traceStep('leased');
    const holding: Holding = { ...taken, marks: [], leasedAt: Date.now() };
    if (attempt.job === null && exceedsLimit(attempt.candidates, attempt.request, attempt.directory)) {
      releaseClaim(holding);
      return { leases: null, obstacle: 'contention' };
    }
    const marked = yield* show(holding, chosen, gpus, attempt);
    if ('holder' in marked) {
      attempt.foreignHolders.set(marked.uuid, marked.holder);
      judgeAvailable(attempt, gpus);
      continue;
    }
    const { after, obstacle } = confirm(holding, chosen, marked.all, attempt);
    if (obstacle === null) return { ...holding, ...marked, gpus: after };
    releaseClaim(holding);
    judgeAvailable(attempt, marked.all);
    return { leases: null, obstacle };
  }
}

/** GPUs that are leased, and not yet looked at again. */
type Holding = Pick<Claim, 'leases' | 'jobFile' | 'marks' | 'leasedAt'>;

/** Shows leased GPUs to other tools, and looks at them again. @returns nothing is held where another tool was quicker */
function* show(
  holding: Holding,
  chosen: readonly GPU[],
  gpus: readonly GPU[],
  attempt: Attempt,
): ClaimSteps<{ all: GPU[]; seenAt: number } | { uuid: string; holder: LeaseInfo }> {
  try {
    const marked = yield* attempt.conventions.mark(chosen, gpus, claimantOf(attempt));
    if (marked.marks === null) {
      releaseClaim(holding);
      return marked;
    }
    holding.marks = marked.marks;
    traceStep('marked');
    const seenAt = now();
    const all = yield* takeSnapshot(chosen.map(({ index }) => index));
    traceStep('looked-again');
    return { all, seenAt };
  } catch (error) {
    releaseClaim(holding);
    throw error;
  }
}

/** Judges leased GPUs once more: a program without a claim may have come in between. */
function confirm(
  { leases }: Holding,
  chosen: readonly GPU[],
  seen: readonly GPU[],
  attempt: Attempt,
): { after: GPU[]; obstacle: 'remains' | 'contention' | null } {
  const { directory, job, request } = attempt;
  const { memory } = request;
  const own = leases.map(({ id }) => id);
  const after = chosen.map((gpu) => seen.find(({ uuid }) => uuid === gpu.uuid) ?? vanished(gpu));
  const verdicts = after.map((gpu) => {
    const sharing =
      memory === undefined ? undefined : sharingOf(directory, gpu, { job, memory }, undefined, own);
    return evaluateOne(gpu, attempt, null, sharing);
  });
  const others = verdicts.filter(({ state }) => state !== 'free');
  const isTransient = others.every(({ transient }) => transient);
  return { after, obstacle: others.length === 0 ? null : isTransient ? 'remains' : 'contention' };
}

/** A MIG instance that was destroyed since the last look. */
function vanished(gpu: GPU): GPU {
  return { ...gpu, health: 'failed', healthReason: "the driver doesn't list it any longer" };
}

/** Short: there may be many. */
function inRecord({ index, instance, uuid, parent, name }: GPU, share: ShareDemand | null) {
  const bytes = share === null ? {} : { bytes: share.units * SHARE_UNIT_BYTES };
  return parent === null ? { index, uuid, name, ...bytes } : { index, instance, uuid, parent, ...bytes };
}

/** Judges which GPUs the claimant may take. @param gpus a newer snapshot */
function judgeAvailable(attempt: Attempt, gpus?: readonly GPU[]): void {
  if (gpus !== undefined) attempt.candidates = evaluateAll(gpus, attempt);
  attempt.candidates = leaveToOthers(attempt, () => waitersAhead(attempt.directory, attempt.position));
}

/** Why not enough of them can be had now. */
function obstacleOf(attempt: Attempt): 'remains' | 'use' {
  const { candidates, request } = attempt;
  const open = candidates.filter(({ verdict }) => verdict.state === 'free' || verdict.transient);
  const uuids = new Set(open.map(({ gpu }) => gpu.uuid));
  const most = mostUsable({ uuids: [], sets: setsFor(candidates, attempt) }, (uuid) => uuids.has(uuid));
  return most >= request.count ? 'remains' : 'use';
}

function demandFor(candidate: Candidate | undefined): ShareDemand | null {
  const { sharing, verdict } = candidate ?? {};
  return sharing === undefined || verdict?.room === undefined ? null : demandOf(sharing, verdict.room.limit);
}

/** Whether a limit of the user, or of a group, counts GPUs. */
function isLimited({
  most = Number.POSITIVE_INFINITY,
  together,
}: Pick<ClaimRequest, 'most' | 'together'>): boolean {
  return together !== undefined || Number.isFinite(most);
}

/** All or none, in the order of UUIDs: two claimants without the acquisition lock then can't both end with a part. */
function takeLeases(
  chosen: readonly GPU[],
  { candidates, directory, request, job, record: claimant, secret }: Attempt,
):
  | { leases: Lease[]; jobFile: Mark | null; error?: never }
  | { leases: null; uuid?: string; error?: GPUOwnerError } {
  const leases: Lease[] = [];
  // Made before a lease, whose number everybody can see: no other process can have made a file of that name.
  const isNeeded = job === null && isLimited(request);
  const jobFile =
    secret === null ? null : makeJobFile(directory, secret, claimant.preemptible === true, isNeeded);
  const shareOf = ({ uuid }: GPU) => demandFor(candidates.find(({ gpu }) => gpu.uuid === uuid));
  const record = nameGPUs(
    claimant,
    chosen.map((gpu) => inRecord(gpu, shareOf(gpu))),
  );
  const inOrder = [...chosen].sort((a, b) => (a.uuid < b.uuid ? -1 : 1));
  for (const gpu of inOrder) {
    let lease: Lease | null = null;
    let failure: unknown;
    try {
      lease = Lease.tryTake(directory, leaseKey(gpu, job), record, shareOf(gpu));
      if (lease !== null) traceStep('lease');
    } catch (error) {
      failure = error;
    }
    if (lease !== null) {
      leases.push(lease);
      continue;
    }
    for (const taken of leases) taken.release();
    if (jobFile !== null) removeMark(jobFile);
    if (failure === undefined) return { leases: null };
    if (!(failure instanceof GPUOwnerError)) throw failure;
    return { leases: null, uuid: gpu.uuid, error: failure };
  }
  return { leases, jobFile };
}

/** Gives back what a claim holds. */
export function releaseClaim(
  claim: Pick<Claim, 'leases' | 'marks' | 'jobFile'> & { entry?: DecisionGuard },
): void {
  claim.entry?.leave();
  for (const mark of claim.marks) removeMark(mark);
  if (claim.jobFile !== null) removeMark(claim.jobFile);
  for (const lease of claim.leases) lease.release();
}
