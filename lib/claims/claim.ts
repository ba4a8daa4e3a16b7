import { now } from '../clock.ts';
import {
  type Claimant,
  type ConventionChoice,
  Conventions,
  type Entry,
  type Mark,
  remove,
} from '../conventions/index.ts';
import { GPUOwnerError, type GPUReason } from '../errors.ts';
import { checkDevices, type NormalizedCriteria, type Verdict } from '../gpus/criteria.ts';
import { inheritedDevices } from '../gpus/inherited-devices.ts';
import { isPossible, select } from '../gpus/selection.ts';
import type { GPU } from '../gpus/types.ts';
import { warnOnce } from '../warnings.ts';
import { AcquisitionLock } from './acquisition-lock.ts';
import { bootId } from './boot.ts';
import { type Candidate, type Judging, judgeAll, judgeOne, reasonsOf, spoil } from './candidates.ts';
import { type Effectful, looking, sleeping } from './effects.ts';
import { claimantOf } from './foreign.ts';
import { isHeldByOwnJob, Lease } from './lease.ts';
import { LockDirectory } from './lock-directory.ts';
import type { Binding } from './placeholder.ts';
import { ownRecord, type RecordContents } from './record.ts';
import { reached } from './steps.ts';

/** A claim, checked and with its defaults. */
export interface ClaimRequest {
  count: number;
  criteria: NormalizedCriteria;
  lockDirectory: string | undefined;
  /** How long to wait for another claimant to decide, in ms. */
  lockTimeout: number;
  /** Whose other lock files count. */
  conventions: ConventionChoice;
  /** What to write into the record as the command; default: this process's own. */
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
  /** What shows users of other conventions that the GPUs are ours. */
  marks: Mark[];
  /** Keeps others from looking for free GPUs; to be left when these can be seen to be taken. */
  entry: Entry;
  directory: LockDirectory;
  /** All GPUs of the machine as last seen. */
  all: GPU[];
}

/** Nothing is held. What was in the way, for those who want to wait for it. */
export interface Refusal {
  granted: false;
  candidates: Candidate[];
  directory: LockDirectory;
  /** Whether waiting can help: enough GPUs are only leased or busy. */
  possible: boolean;
  /** ERR_GPU_UNAVAILABLE with the reason for each GPU, or ERR_LOCK_DIRECTORY */
  error: GPUOwnerError;
}

/** How long what is left of a dead owner may keep its GPU from being claimed, in ms. */
const REMAINS_PATIENCE = 2_000;
const LONGEST_PAUSE = 64;
/** How long a GPU may take to start up where nothing keeps the driver awake, in ms. */
const STARTUP_PATIENCE = 10_000;
const STARTUP_PAUSE = 100;
const STARTUP_NOTICE = 2_000;
/** How long to try again while others take GPUs from under this claim, in ms. */
const CONTENTION_PATIENCE = 5_000;

/**
 * Leases `count` GPUs that satisfy the criteria, all or none.
 *
 * @throws ERR_INVALID_ARGUMENT for what this machine can never satisfy, ERR_LOCK_DIRECTORY, ERR_NO_DRIVER, ERR_DRIVER,
 *   ERR_ABORTED; nothing is held then
 */
export function* claim(
  request: ClaimRequest,
  configuredDirectory: string | undefined,
): Effectful<Claim | Refusal> {
  reached('start');
  let gpus = yield* firstLook(request.count);
  reached('driver');
  checkDevices(request.criteria, gpus);
  const directory = LockDirectory.open(request.lockDirectory, { lockDirectory: configuredDirectory });
  const inherited = inheritedDevices(gpus);
  const visible = request.bound === undefined ? inherited : new Set(request.bound.uuids);
  const judging: Judging = { criteria: request.criteria, visible, directory };
  const candidates = judgeAll(gpus, judging);
  refuseImpossible(
    request.count,
    candidates.map(({ verdict }) => verdict),
    reasonsOf(candidates),
    request.bound,
  );
  const record = ownRecord(bootId(), request.command);
  const others = {
    conventions: new Conventions(request.conventions),
    claimant: claimantOf(directory, record, request.lockTimeout),
  };

  const started = now();
  let fresh = true;
  for (let pause = 1; ; ) {
    if (!fresh) gpus = yield* looking();
    const entry = yield* others.conventions.enter(others.claimant);
    let outcome: Attempt | undefined;
    try {
      const lock = yield* AcquisitionLock.take(directory, request.lockTimeout, record);
      try {
        reached('acquisition-lock');
        outcome = yield* attempt(gpus, request.count, judging, record, others);
      } finally {
        lock.release();
      }
    } finally {
      if (!outcome?.leases) entry.leave();
    }
    reached('unlocked');
    if (outcome.leases !== null) {
      const { gpus, leases, marks, all } = outcome;
      return { granted: true, gpus, leases, marks, entry, directory, all };
    }
    const patience = outcome.obstacle === 'remains' ? REMAINS_PATIENCE : CONTENTION_PATIENCE;
    if (outcome.obstacle === 'use' || now() - started > patience) {
      return refusal(request, outcome, directory);
    }
    // Random, so that claimants who met do not meet again.
    yield* sleeping(outcome.obstacle === 'remains' ? pause : 1 + Math.random() * 20);
    pause = Math.min(2 * pause, LONGEST_PAUSE);
    fresh = false;
  }
}

function refusal(
  request: ClaimRequest,
  outcome: Attempt & { leases: null },
  directory: LockDirectory,
): Refusal {
  const { candidates } = outcome;
  const verdicts = candidates.map(({ verdict }) => verdict);
  const leased = candidates.filter(({ verdict }) => verdict.state === 'leased');
  const nested = leased.length > 0 && leased.every(({ gpu }) => isHeldByOwnJob(directory, gpu.uuid));
  return {
    granted: false,
    candidates,
    directory,
    possible: !nested && isPossible(request.count, verdicts),
    error: nested ? alreadyOwn(reasonsOf(candidates)) : unavailable(request, outcome),
  };
}

function alreadyOwn(gpus: GPUReason[]): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_GPU_UNAVAILABLE',
    'the GPUs are claimed already, by the `gpu-owner run` that this runs in: use them directly, without another claim.',
    { gpus },
  );
}

type Attempt =
  | { leases: Lease[]; marks: Mark[]; gpus: GPU[]; all: GPU[] }
  | {
      leases: null;
      candidates: Candidate[];
      /** use: others have them; remains: a dead owner may still show; contention: another claimant was quicker. */
      obstacle: 'use' | 'remains' | 'contention';
    };

function* attempt(
  gpus: GPU[],
  count: number,
  { directory, ...other }: Judging,
  record: RecordContents,
  { conventions, claimant }: { conventions: Conventions; claimant: Claimant },
): Effectful<Attempt> {
  conventions.tidy(gpus, claimant);
  const foreign = yield* conventions.holders(gpus, claimant);
  const judging: Judging = { ...other, directory, foreign };
  let candidates = judgeAll(gpus, judging);
  let free = candidates.filter(({ verdict }) => verdict.state === 'free').map(({ gpu }) => gpu);
  for (;;) {
    const chosen = select(free, count);
    if (chosen === null) {
      const transient = candidates.filter(({ verdict }) => verdict.transient).length;
      return { leases: null, candidates, obstacle: free.length + transient >= count ? 'remains' : 'use' };
    }
    reached('chosen');
    const taken = takeAll(chosen, directory as LockDirectory, record);
    if (taken.error !== undefined) {
      const { uuid, error } = taken;
      candidates = candidates.map((each) =>
        each.gpu.uuid === uuid ? spoil({ ...each, problem: error }) : each,
      );
      free = free.filter((gpu) => gpu.uuid !== uuid);
      continue;
    }
    if (taken.leases === null) return { leases: null, candidates, obstacle: 'contention' };
    reached('leased');
    const holding = { leases: taken.leases, marks: [] as Mark[] };
    let seen: GPU[];
    try {
      const marked = yield* conventions.mark(chosen, gpus, claimant);
      if (marked.marks === null) {
        giveBack(holding);
        foreign.set(marked.uuid, marked.holder);
        candidates = judgeAll(gpus, judging);
        free = free.filter((gpu) => gpu.uuid !== marked.uuid);
        continue;
      }
      holding.marks = marked.marks;
      reached('marked');
      seen = yield* looking(chosen.map(({ index }) => index));
    } catch (error) {
      giveBack(holding);
      throw error;
    }
    reached('looked-again');
    const after = chosen.map((gpu) => seen[gpu.index] ?? gpu);
    const verdicts = after.map((gpu) => judgeOne(gpu, judging, null));
    if (verdicts.every(({ state }) => state === 'free')) return { ...holding, gpus: after, all: seen };
    giveBack(holding);
    return {
      leases: null,
      candidates: judgeAll(seen, judging),
      obstacle: verdicts.every(({ state, transient }) => state === 'free' || transient)
        ? 'remains'
        : 'contention',
    };
  }
}

/** All or none, in the order of UUIDs: two claimants without the acquisition lock then can't both end with a part. */
function takeAll(
  chosen: readonly GPU[],
  directory: LockDirectory,
  claimant: RecordContents,
): { leases: Lease[] | null; uuid?: string; error?: GPUOwnerError } {
  const leases: Lease[] = [];
  const record = { ...claimant, gpus: chosen.map(({ index, uuid, name }) => ({ index, uuid, name })) };
  const inOrder = [...chosen].sort((a, b) => (a.uuid < b.uuid ? -1 : 1));
  for (const gpu of inOrder) {
    let lease: Lease | null = null;
    let failure: unknown;
    try {
      lease = Lease.tryTake(directory, gpu.uuid, record);
      if (lease !== null) reached('lease');
    } catch (error) {
      failure = error;
    }
    if (lease !== null) {
      leases.push(lease);
      continue;
    }
    for (const taken of leases) taken.release();
    if (failure === undefined) return { leases: null };
    if (!(failure instanceof GPUOwnerError)) throw failure;
    return { leases: null, uuid: gpu.uuid, error: failure };
  }
  return { leases };
}

let startedUp = false;

/**
 * A look that lets GPUs start up, at the first time in a process. Where nothing keeps the driver awake, each takes one to
 * three seconds: if more than half of them are silent, or more than can be spared, that is what is probably going on,
 * rather than a GPU that hangs.
 * @param wanted how many GPUs the caller needs
 */
export function* firstLook(wanted: number): Effectful<GPU[]> {
  const started = now();
  for (;;) {
    const gpus = yield* looking();
    const silent = gpus.filter(({ health }) => health === 'not-responding').length;
    const enough = silent <= gpus.length / 2 && gpus.length - silent >= Math.min(wanted, gpus.length);
    const passed = now() - started;
    if (silent === 0 || enough || startedUp || passed > STARTUP_PATIENCE) {
      startedUp = true;
      return gpus;
    }
    if (passed > STARTUP_NOTICE) {
      warnOnce(
        `the driver has not answered for ${silent} of ${gpus.length} GPUs yet; they may be starting up.`,
      );
    }
    yield* sleeping(STARTUP_PAUSE);
  }
}

/** What no waiting mends is refused at once. @throws ERR_INVALID_ARGUMENT */
export function refuseImpossible(
  count: number,
  verdicts: readonly Pick<Verdict, 'state'>[],
  gpus: readonly GPUReason[],
  bound?: Binding,
): void {
  const allowed = verdicts.filter(({ state }) => state !== 'excluded').length;
  if (allowed >= count) return;
  const why =
    allowed === verdicts.length
      ? `this machine has ${allowed || 'none'}`
      : `this machine has ${verdicts.length}, of which ${allowed || 'none'} may be used here`;
  const message = `${count} ${count === 1 ? 'GPU' : 'GPUs'} asked for, but ${why}`;
  if (bound !== undefined) throw boundElsewhere(bound, message, gpus);
  throw new GPUOwnerError('ERR_INVALID_ARGUMENT', message + listed(gpus), { gpus });
}

/** Other GPUs may be free: that doesn't help a process to which CUDA shows only some. */
export function boundElsewhere(
  { uuids, by }: Binding,
  message: string,
  gpus: readonly GPUReason[] = [],
): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_CUDA_INITIALIZED',
    `${message}: CUDA in this process was bound to ${uuids.length === 1 ? 'one' : uuids.length} by ${by}. Claim all GPUs at ` +
      "once, or with placeholder: 'none', or in another process.",
    { gpus },
  );
}

/** Gives back what a claim holds. */
export function giveBack(claim: Pick<Claim, 'leases' | 'marks'> & { entry?: Entry }): void {
  claim.entry?.leave();
  for (const mark of claim.marks) remove(mark);
  for (const lease of claim.leases) lease.release();
}

function unavailable({ count, bound }: ClaimRequest, outcome: Attempt & { leases: null }): GPUOwnerError {
  const { candidates, obstacle } = outcome;
  const problem = candidates.find((each) => each.problem !== null)?.problem;
  const usable = candidates.filter(
    (each) => each.problem === null && each.verdict.state !== 'excluded',
  ).length;
  // No waiting helps then.
  if (problem && usable < count) return problem;
  const reasons = reasonsOf(candidates);
  const message =
    obstacle === 'contention'
      ? 'other claimants were quicker, again and again'
      : notEnough(
          count,
          candidates.map(({ verdict }) => verdict),
        );
  if (bound !== undefined) return boundElsewhere(bound, message, reasons);
  return new GPUOwnerError('ERR_GPU_UNAVAILABLE', message + listed(reasons), { gpus: reasons });
}

/** "2 GPUs asked for, only 1 is free" */
export function notEnough(count: number, verdicts: readonly Pick<Verdict, 'state'>[]): string {
  const free = verdicts.filter(({ state }) => state === 'free').length;
  const have = free === 0 ? 'none is free' : `only ${free} ${free === 1 ? 'is' : 'are'} free`;
  return `${count} ${count === 1 ? 'GPU' : 'GPUs'} asked for, ${have}`;
}

export function listed(reasons: readonly { index: number; reason: string }[]): string {
  if (reasons.length === 0) return '.';
  return `:\n${reasons.map(({ index, reason }) => `  GPU ${index}: ${reason}`).join('\n')}`;
}
