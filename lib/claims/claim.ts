import type { ConventionChoice, NormalizedCriteria } from '../config/index.ts';
import {
  type Claimant,
  Conventions,
  type Entry,
  type Holders,
  type Mark,
  removeMark,
} from '../conventions/index.ts';
import { GPUOwnerError } from '../errors.ts';
import {
  checkDevices,
  type GPU,
  inheritedClaim,
  inheritedDevices,
  isPossible,
  isWSL,
  openDriver,
  select,
} from '../gpus/index.ts';
import { bootId, now, sleeping } from '../platform/index.ts';
import { AcquisitionLock } from './acquisition-lock.ts';
import { refuseImpossible, unavailable } from './claim-errors.ts';
import { awaitDriverStartup } from './driver-startup.ts';
import { type Effectful, takeSnapshot } from './effects.ts';
import {
  applyProblem,
  type Candidate,
  type EvaluationContext,
  evaluateAll,
  evaluateOne,
  explainLocks,
  gpuRequestOf,
  leaseKey,
  reasonsOf,
  reserveForWaiters,
  scopeOf,
} from './evaluate.ts';
import type { GpuRequest } from './fairness.ts';
import { claimantOf, leasesIn } from './interop-context.ts';
import { Lease } from './lease.ts';
import { LockDirectory } from './lock-directory.ts';
import { findParentJob, type JobSecret, makeJobFile, newJobSecret, type ParentJob } from './parent-job.ts';
import type { Binding } from './placeholder.ts';
import { nameGPUs, ownRecord, type RecordContents } from './record.ts';
import { reached } from './trace-points.ts';
import { type QueuePosition, waitersAhead } from './wait-queue.ts';

/** A claim, checked and with its defaults. */
export interface ClaimRequest {
  count: number;
  criteria: NormalizedCriteria;
  lockDirectory: string | undefined;
  /** How long to wait for another claimant to decide, in ms. */
  lockTimeout: number;
  /** The other tools whose lock files count. */
  conventions: ConventionChoice;
  /** Whether other claims can be made inside of this one. */
  isJob?: boolean;
  /** The command in the record; default: this process's own. */
  command?: string;
  /** CUDA is bound to some GPUs in this process: only these will do. */
  bound?: Binding;
}

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
  entry: Entry;
  directory: LockDirectory;
  /** The job whose GPUs these are, in which this process runs; null: they were taken from the machine. */
  job: ParentJob | null;
  /** All GPUs of the machine as last seen. */
  all: GPU[];
  /** When the last look at the GPUs began, on the clock of `now()`, in ms. */
  seen: number;
}

/** Nothing is held. What was in the way, for those who want to wait for it. */
export interface Refusal {
  granted: false;
  candidates: Candidate[];
  directory: LockDirectory;
  /** The GPUs to wait for. */
  gpuRequest: Omit<GpuRequest, 'slot'>;
  record: RecordContents;
  job: ParentJob | null;
  /** Whether waiting can help: enough GPUs are only leased or busy. */
  possible: boolean;
  /** ERR_GPU_UNAVAILABLE with the reason for each GPU, or ERR_LOCK_DIRECTORY */
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
  configuredDirectory: string | undefined,
  position: QueuePosition | null = null,
): Effectful<Claim | Refusal> {
  reached('start');
  const { candidates, judging, directory, job, conventions } = yield* survey(request, configuredDirectory);
  let gpus = candidates.map(({ gpu }) => gpu);
  refuseImpossible(
    request.count,
    candidates.map(({ verdict }) => verdict),
    () => reasonsOf(candidates),
    request.bound,
    job,
  );
  const secret = request.isJob ? newJobSecret() : null;
  const record = ownRecord(bootId(), request.command, secret?.generation);
  const left = reserveForQueue(candidates, judging, position);
  if (obstacleOf(left, request.count) === 'use') {
    // Nobody who decides just now needs to be waited for, or to wait: there is nothing to decide about.
    const outcome = { leases: null, candidates: left, obstacle: 'use' } as const;
    return yield* refusal(request, outcome, judging, record, job);
  }
  const others = {
    conventions,
    claimant: claimantOf(directory, record, request.lockTimeout),
  };

  const started = now();
  let fresh = true;
  for (let pause = 1; ; ) {
    const began = now(); // a process that is suspended in the middle shall not have tried once only
    if (!fresh) gpus = yield* takeSnapshot();
    const entry = yield* others.conventions.enter(others.claimant);
    let outcome: Decision | undefined;
    try {
      const lock = yield* AcquisitionLock.take(directory, request.lockTimeout, record);
      try {
        reached('acquisition-lock');
        const found = { candidates, current: fresh && !lock.waited };
        outcome = yield* decide(gpus, request.count, { judging, record, secret, position, others, found });
      } finally {
        lock.release();
      }
    } finally {
      if (!outcome?.leases) entry.leave();
    }
    reached('unlocked');
    if (outcome.leases !== null) {
      const { gpus, leases, marks, jobFile, all, seen } = outcome;
      return { granted: true, gpus, leases, marks, jobFile, entry, directory, job, all, seen };
    }
    const patience = outcome.obstacle === 'remains' ? REMAINS_TIMEOUT_MS : CONTENTION_TIMEOUT_MS;
    if (outcome.obstacle === 'use' || began - started > patience) {
      return yield* refusal(request, outcome, judging, record, job);
    }
    // Random, so that claimants who met do not meet again.
    yield* sleeping(outcome.obstacle === 'remains' ? pause : 1 + Math.random() * 20);
    pause = Math.min(2 * pause, MAX_PAUSE_MS);
    fresh = false;
  }
}

export interface Survey {
  candidates: Candidate[];
  judging: EvaluationContext;
  directory: LockDirectory;
  job: ParentJob | null;
  conventions: Conventions;
}

/** How the GPUs are as far as this request is concerned, whoever waits. Takes nothing. @throws as {@link claim} */
export function* survey(request: ClaimRequest, configuredDirectory: string | undefined): Effectful<Survey> {
  openDriver(); // before anything is made in the file system
  const directory = LockDirectory.open(request.lockDirectory, { lockDirectory: configuredDirectory });
  const gpus = yield* awaitDriverStartup(request.count);
  reached('driver');
  checkDevices(request.criteria, gpus);
  const job = findParentJob(directory, gpus);
  const inherited = job === null ? inheritedDevices(gpus) : inheritedClaim(gpus);
  const visible = request.bound === undefined ? inherited : new Set(request.bound.uuids);
  const judging: EvaluationContext = {
    criteria: request.criteria,
    visible,
    directory,
    job: job?.generation ?? null,
    count: request.count,
    wsl: isWSL(),
  };
  // The job's own marks would be in the way inside of it.
  const conventions = new Conventions(job === null ? request.conventions : []);
  judging.foreign = yield* conventions.holders(gpus, leasesIn(directory));
  return { candidates: evaluateAll(gpus, judging), judging, directory, job, conventions };
}

function* refusal(
  request: ClaimRequest,
  outcome: Decision & { leases: null },
  judging: EvaluationContext,
  record: RecordContents,
  job: ParentJob | null,
): Effectful<Refusal> {
  const candidates = yield* explainLocks(outcome.candidates, judging);
  const directory = judging.directory as LockDirectory;
  const verdicts = candidates.map(({ verdict }) => verdict);
  return {
    granted: false,
    candidates,
    directory,
    gpuRequest: gpuRequestOf(candidates, request.count, scopeOf(job?.generation ?? null)),
    record,
    job,
    possible: isPossible(request.count, verdicts),
    error: unavailable(request, candidates, outcome.obstacle === 'contention'),
  };
}

type Decision =
  | { leases: Lease[]; marks: Mark[]; jobFile: Mark | null; gpus: GPU[]; all: GPU[]; seen: number }
  | {
      leases: null;
      candidates: Candidate[];
      /** use: others have them; remains: a dead owner may still show; contention: another claimant took them first. */
      obstacle: 'use' | 'remains' | 'contention';
    };

/** Everything that a decision takes into account besides the GPUs. */
interface DecisionContext {
  judging: EvaluationContext;
  record: RecordContents;
  /** null: no claims can be made inside of this one. */
  secret: JobSecret | null;
  position: QueuePosition | null;
  others: { conventions: Conventions; claimant: Claimant };
  /** The candidates as found before the lock was taken. Not current: GPUs were looked at again, or others may have decided since. */
  found: { candidates: readonly Candidate[]; current: boolean };
}

function* decide(
  gpus: GPU[],
  count: number,
  { judging: before, record, secret, position, others: { conventions, claimant }, found }: DecisionContext,
): Effectful<Decision> {
  const known = found.current && conventions.sawNothing;
  const foreign: Holders = known ? new Map() : yield* conventions.holders(gpus, claimant, true);
  const judging: EvaluationContext = { ...before, foreign };
  // What was found may just have changed. Then a lease can't be had, and all is looked at again: the leases decide in any case.
  let trusting = found.current && foreign.size === 0;
  const judged = () => {
    trusting = false;
    return reserveForQueue(evaluateAll(gpus, judging, found.candidates), judging, position);
  };
  let candidates = trusting ? reserveForQueue(found.candidates, judging, position) : judged();
  for (;;) {
    const chosen = select(freeOf(candidates), count);
    if (chosen === null) {
      if (!trusting) return { leases: null, candidates, obstacle: obstacleOf(candidates, count) };
      candidates = judged();
      continue;
    }
    reached('chosen');
    const taken = takeLeases(chosen, judging, record, secret);
    if (taken.error !== undefined) {
      const { uuid, error } = taken;
      candidates = candidates.map((each) =>
        each.gpu.uuid === uuid ? applyProblem({ ...each, problem: error }) : each,
      );
      continue;
    }
    if (taken.leases === null) {
      if (!trusting) return { leases: null, candidates, obstacle: 'contention' };
      candidates = judged();
      continue;
    }
    reached('leased');
    const holding = { leases: taken.leases, jobFile: taken.jobFile, marks: [] as Mark[] };
    let seen: GPU[];
    let at: number;
    try {
      const marked = yield* conventions.mark(chosen, gpus, claimant);
      if (marked.marks === null) {
        releaseClaim(holding);
        foreign.set(marked.uuid, marked.holder);
        candidates = judged();
        continue;
      }
      holding.marks = marked.marks;
      reached('marked');
      at = now(); // not later: this process may be suspended at any moment
      seen = yield* takeSnapshot(chosen.map(({ index }) => index));
    } catch (error) {
      releaseClaim(holding);
      throw error;
    }
    reached('looked-again');
    const after = chosen.map((gpu) => seen.find(({ uuid }) => uuid === gpu.uuid) ?? vanished(gpu));
    const verdicts = after.map((gpu) => evaluateOne(gpu, judging, null));
    if (verdicts.every(({ state }) => state === 'free'))
      return { ...holding, gpus: after, all: seen, seen: at };
    releaseClaim(holding);
    return {
      leases: null,
      candidates: reserveForQueue(evaluateAll(seen, judging), judging, position),
      obstacle: verdicts.every(({ state, transient }) => state === 'free' || transient)
        ? 'remains'
        : 'contention',
    };
  }
}

/** A MIG instance that was destroyed since the last look. */
function vanished(gpu: GPU): GPU {
  return { ...gpu, health: 'failed', healthReason: "the driver doesn't list it any longer" };
}

/** Short: there may be many. */
function inRecord({ index, instance, uuid, parent, name }: GPU) {
  return parent === null ? { index, uuid, name } : { index, instance, uuid, parent };
}

function reserveForQueue(
  candidates: readonly Candidate[],
  { directory, job }: EvaluationContext,
  position: QueuePosition | null,
): Candidate[] {
  return reserveForWaiters(candidates, scopeOf(job), waitersAhead(directory, position));
}

function freeOf(candidates: readonly Candidate[]): GPU[] {
  return candidates.filter(({ verdict }) => verdict.state === 'free').map(({ gpu }) => gpu);
}

/** Why not enough of them can be had now. */
function obstacleOf(candidates: readonly Candidate[], count: number): 'remains' | 'use' {
  const transient = candidates.filter(({ verdict }) => verdict.transient).length;
  return freeOf(candidates).length + transient >= count ? 'remains' : 'use';
}

/** All or none, in the order of UUIDs: two claimants without the acquisition lock then can't both end with a part. */
function takeLeases(
  chosen: readonly GPU[],
  { directory, job }: EvaluationContext,
  claimant: RecordContents,
  secret: JobSecret | null,
):
  | { leases: Lease[]; jobFile: Mark | null; error?: never }
  | { leases: null; uuid?: string; error?: GPUOwnerError } {
  const leases: Lease[] = [];
  // Before a lease, whose number everybody can see: nobody else can have made a file of that name.
  const jobFile = secret === null ? null : makeJobFile(directory as LockDirectory, secret);
  const record = nameGPUs(claimant, chosen.map(inRecord));
  const inOrder = [...chosen].sort((a, b) => (a.uuid < b.uuid ? -1 : 1));
  for (const gpu of inOrder) {
    let lease: Lease | null = null;
    let failure: unknown;
    try {
      lease = Lease.tryTake(directory as LockDirectory, leaseKey(gpu, job), record);
      if (lease !== null) reached('lease');
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
export function releaseClaim(claim: Pick<Claim, 'leases' | 'marks' | 'jobFile'> & { entry?: Entry }): void {
  claim.entry?.leave();
  for (const mark of claim.marks) removeMark(mark);
  if (claim.jobFile !== null) removeMark(claim.jobFile);
  for (const lease of claim.leases) lease.release();
}
