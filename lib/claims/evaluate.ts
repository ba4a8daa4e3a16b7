import { driverLibraries, type NormalizedCriteria } from '../config/index.ts';
import type { Holders } from '../conventions/index.ts';
import { GPUOwnerError, type GPUReason } from '../errors.ts';
import {
  byPlace,
  describeListedProcess,
  type GPU,
  type GPUState,
  isDivided,
  isWSL,
  type JudgeContext,
  judge,
  type LeaseInfo,
  label,
  mayBecomeFree,
  type Sharing,
  select,
  separateKinds,
  type Verdict,
} from '../gpus/index.ts';
import { native } from '../native.ts';
import {
  describeOwner,
  formatSince,
  hostName,
  now,
  sanitize,
  sleeping,
  type Waiting,
} from '../platform/index.ts';
import {
  backfilled,
  bestFit,
  type DividedGPU,
  type GPUUse,
  type JoiningRequest,
  keepRoom,
  type RequestClass,
  reservedFor,
  type ShareSize,
  unitsOf,
} from '../policy/index.ts';
import {
  endedWithin,
  findUnexplained,
  type Holder,
  type LeaseKey,
  type LockOwners,
  levelOf,
  mayHaveRemains,
  probeLease,
  probeWhole,
  UNDIVIDED,
  whyUntakable,
} from './lease-file.ts';
import { sizeOf } from './limits.ts';
import type { LockDirectory } from './lock-directory.ts';
import type { Binding } from './options.ts';
import { ownLeaseNote } from './own-lease.ts';
import type { ParentJob } from './parent-job.ts';
import { leaseInfo } from './record.ts';
import { formatShare, sharingOf } from './shares.ts';
import type { Waiter } from './wait-queue.ts';

/** How long a placeholder may take to end, in ms. */
const PLACEHOLDER_END_MS = 500;

export interface Candidate {
  gpu: GPU;
  verdict: Verdict;
  lease: LeaseInfo | null;
  /** Missing: there are no shares, and none is asked for. */
  sharing?: Sharing;
  /** Why the lease file can't be used: that spoils this GPU, not the others. */
  problem: GPUOwnerError | null;
}

export interface EvaluationContext {
  criteria: NormalizedCriteria;
  /** UUIDs that this process may use at all; null: all. */
  visible: ReadonlySet<string> | null;
  /** null: no directory exists, so nothing is leased. */
  directory: LockDirectory | null;
  /** The lease epoch of the job inside of which the claim is made, from the GPUs that it holds; null: from the machine's. */
  job: number | null;
  /** The share that is wanted of each; missing: whole GPUs are. */
  memory?: ShareSize;
  /** How many are wanted: that decides whether MIG instances or whole GPUs can be meant. Default: either. */
  count?: number;
  /** Holders of GPUs by the locks of other programs; default: none. */
  foreignHolders?: Holders;
}

const NOT_OF_THE_JOB: Verdict = {
  state: 'excluded',
  reason: 'not among the GPUs of the surrounding `gpu-owner run`',
  transient: false,
};

/** Every GPU with whether it is free, or why not. Takes nothing. */
export function evaluateAll(gpus: readonly GPU[], context: EvaluationContext): Candidate[] {
  const { directory, job } = context;
  const candidates = gpus.map((gpu): Candidate => {
    const leasable = directory !== null && gpu.uuid !== '';
    const key = leaseKey(gpu, job);
    if (job !== null && leasable && levelOf(directory, key) === null) {
      return { gpu, verdict: NOT_OF_THE_JOB, lease: null, problem: null };
    }
    const { lease: own, sharing } = leasable ? readHolding(directory, gpu, key, context) : NOT_HELD;
    const lease = own ?? context.foreignHolders?.get(gpu.uuid) ?? null;
    const problem = leasable && lease === null ? whyUntakable(directory, key) : null;
    const verdict = evaluateOne(gpu, context, lease, sharing);
    return applyProblem({ gpu, verdict, lease, problem, ...(sharing === undefined ? {} : { sharing }) });
  });
  return separateKinds(candidates, context.count ?? 1);
}

/** So long a holder may take to write who it is, in ms. */
const RECORD_WRITE_MS = 5;
const explanations = new Map<string, { at: number; found: LockOwners }>();
/** So long an answer is good that took looking at all processes, in ms. */
const EXPLANATION_MAX_AGE_MS = 10_000;

/** The same, with what the kernel tells of locks without a record of their holder. For people. */
export function* explainLocks(candidates: Candidate[], context: EvaluationContext): Waiting<Candidate[]> {
  const { directory, job } = context;
  const isUnexplained = ({ lease, verdict: { state } }: Candidate) =>
    state === 'leased' && (lease?.nested ?? lease)?.stranger === true;
  if (directory === null || !candidates.some(isUnexplained)) return candidates;
  const again = (candidate: Candidate): Candidate => {
    const { gpu } = candidate;
    const holder = isUnexplained(candidate) ? whoHolds(directory, gpu, leaseKey(gpu, job)) : null;
    if (holder === null) return candidate;
    const { info: lease } = holder;
    return { ...candidate, lease, verdict: evaluateOne(gpu, context, lease, candidate.sharing) };
  };
  let present = candidates.map(again);
  const isNew = (candidate: Candidate) =>
    isUnexplained(candidate) && knownExplanation(directory, leaseKey(candidate.gpu, job)) === null;
  if (present.some(isNew)) {
    yield* sleeping(RECORD_WRITE_MS);
    present = present.map(again);
  }
  return present.map((candidate) => {
    if (!isUnexplained(candidate)) return candidate;
    const key = leaseKey(candidate.gpu, job);
    const found = knownExplanation(directory, key) ?? findUnexplained(directory, key);
    if (found === null) return candidate;
    if (!found.owners.some(({ isClaim }) => isClaim))
      explanations.set(nameOf(directory, key), { at: now(), found });
    return { ...candidate, ...explain(candidate, found) };
  });
}

function knownExplanation(directory: LockDirectory, key: LeaseKey): LockOwners | null {
  const known = explanations.get(nameOf(directory, key));
  return known !== undefined && now() - known.at < EXPLANATION_MAX_AGE_MS ? known.found : null;
}

function nameOf({ all }: LockDirectory, { uuid, job }: LeaseKey): string {
  return [...all, uuid, job].join();
}

function explain(
  { lease, verdict }: Candidate,
  { path, owners }: LockOwners,
): Pick<Candidate, 'lease' | 'verdict'> {
  const [owner] = owners;
  if (owner === undefined) {
    const reason = `locked by a program that is not a gpu-owner claim, or whose record can't be read: as root, \`fuser -v ${path}\` shows it`;
    return { lease, verdict: { ...verdict, reason } };
  }
  const { uid, pid, name } = owner;
  const user = owner.user ?? 'somebody';
  const holder: LeaseInfo = { ...leaseInfo(null), user, uid, pid, command: name, stranger: true };
  const reason = owner.isClaim
    ? `leased by ${describeOwner(owner)}, which couldn't write its record`
    : `locked by ${describeOwner(owner)}, which is not a gpu-owner claim: see \`gpu-owner doctor\``;
  return {
    lease: lease?.nested === undefined ? holder : { ...lease, nested: holder },
    verdict: { ...verdict, reason },
  };
}

export function leaseKey({ uuid, parent }: GPU, job: number | null): LeaseKey {
  return { uuid, parent, job };
}

/** The holder of the lease. Leases of a divided GPU's instances are shown with these. */
function whoHolds(directory: LockDirectory, gpu: GPU, key: LeaseKey): Holder | null {
  return isDivided(gpu) ? probeWhole(directory, gpu.uuid) : probeLease(directory, key);
}

/** The lease of a GPU as a whole, and its shares. */
interface Holding {
  lease: LeaseInfo | null;
  sharing: Sharing | undefined;
}

const NOT_HELD: Holding = { lease: null, sharing: undefined };
/** So often a share may end between the look at the lease and that at the shares. */
const MAX_LOOKS = 4;

function readHolding(directory: LockDirectory, gpu: GPU, key: LeaseKey, context: EvaluationContext): Holding {
  for (let i = 1; ; i++) {
    const holder = whoHolds(directory, gpu, key);
    const isPart = holder?.isPart === true;
    const division = isPart || isDivided(gpu) ? undefined : UNDIVIDED;
    const sharing = sharingOf(directory, gpu, context, division);
    if (sharing !== undefined && sharing.taken > 0) return { lease: null, sharing };
    if (!isPart || i === MAX_LOOKS) return { lease: holder?.info ?? null, sharing };
  }
}

/** Makes a GPU unavailable whose lease file can't be used. */
export function applyProblem(candidate: Candidate): Candidate {
  const { problem, verdict } = candidate;
  if (problem === null || verdict.state === 'excluded' || verdict.state === 'unavailable') return candidate;
  return { ...candidate, verdict: { state: 'unavailable', reason: problem.message, transient: false } };
}

/** Claims within the same job share a wait queue. */
export function scopeOf(job: number | null): string | null {
  return job === null ? null : String(job);
}

/** Chooses among the GPUs that are free, or have room for the share that is asked for; null: there aren't so many. */
export function chooseFree(candidates: readonly Candidate[], count: number): GPU[] | null {
  const free = candidates.filter(({ verdict }) => verdict.state === 'free');
  const rooms = free.flatMap(({ gpu, verdict: { room } }) =>
    room === undefined ? [] : [{ gpu, room: room.room }],
  );
  if (rooms.length === 0) {
    return select(
      free.map(({ gpu }) => gpu),
      count,
    );
  }
  rooms.sort((a, b) => Number(a.gpu.displayActive === true) - Number(b.gpu.displayActive === true));
  return (
    bestFit(rooms, count)
      ?.map(({ gpu }) => gpu)
      .sort(byPlace) ?? null
  );
}

/** GPUs that are free, or would be if none of them was kept for a waiter ahead. */
export function freeOrKept(candidates: readonly Candidate[]): Candidate[] {
  return candidates.filter(({ verdict }) => verdict.state === 'free' || verdict.keptFor !== undefined);
}

/** Whether a waiter could take a GPU that is free for this claim: a share may leave too little of it. */
function couldTake({ memory }: Pick<Waiter, 'memory'>, { sharing, verdict: { room } }: Candidate): boolean {
  if (memory === undefined) return (sharing?.taken ?? 0) === 0;
  return room === undefined || !sharing?.capacity || unitsOf(memory, sharing.capacity) <= room.room;
}

/** The waiters, each without the GPUs that are free for this claim, but not for that waiter. */
export function withoutTooSmall<Waiting extends Waiter>(
  waiters: readonly Waiting[],
  candidates: readonly Candidate[],
): Waiting[] {
  const free = freeOrKept(candidates);
  return waiters.map((waiter) => {
    const tooSmall = new Set(free.filter((each) => !couldTake(waiter, each)).map(({ gpu }) => gpu.uuid));
    return { ...waiter, uuids: waiter.uuids.filter((uuid) => !tooSmall.has(uuid)) };
  });
}

/** GPUs of which the waiters ahead keep too much for a share, even if all of it was free. */
export function sharesAreKept(
  candidates: readonly Candidate[],
  { count, scope, uuids }: Pick<JoiningRequest, 'count' | 'scope' | 'uuids'>,
  ahead: Iterable<Waiter>,
): boolean {
  const divided = candidates.flatMap(({ gpu: { uuid }, sharing }): DividedGPU[] =>
    sharing?.capacity && uuids.includes(uuid) ? [{ uuid, capacity: sharing.capacity, taken: 0 }] : [],
  );
  const kept = keepRoom(divided, scope, ahead);
  const wanted = (uuid: string) => candidates.find(({ gpu }) => gpu.uuid === uuid)?.sharing?.wanted ?? 0;
  const open = divided.filter(
    ({ uuid, capacity }) => capacity - (kept.get(uuid)?.units ?? 0) >= wanted(uuid),
  );
  return divided.length > 0 && open.length < count;
}

/** Keeps memory of GPUs for the waiters ahead that need more than there is. */
function keepRoomForWaiters(
  candidates: readonly Candidate[],
  scope: string | null,
  ahead: Iterable<Waiter>,
): Candidate[] {
  const divided = candidates.flatMap(({ gpu: { uuid }, sharing, verdict: { state, room } }): DividedGPU[] =>
    room === undefined || sharing === undefined || state === 'busy'
      ? []
      : [{ uuid, capacity: room.limit, taken: sharing.taken }],
  );
  const kept = keepRoom(divided, scope, ahead);
  return candidates.map((candidate) => {
    const { gpu, verdict, sharing } = candidate;
    const { room } = verdict;
    const units = kept.get(gpu.uuid);
    if (units === undefined || room === undefined || verdict.state !== 'free') return candidate;
    if (room.room - units.units >= (sharing?.wanted ?? 0)) return candidate;
    const reason = `there is room, but ${describeWaiter(units.by)}`;
    return { ...candidate, verdict: { ...verdict, state: 'leased', reason, keptFor: units.by.slot } };
  });
}

/** Reserves free GPUs for the waiters ahead that could use them. */
export function reserveForWaiters(
  candidates: readonly Candidate[],
  scope: string | null,
  ahead: Iterable<Waiter>,
): Candidate[] {
  if (candidates.some(({ sharing }) => (sharing?.wanted ?? null) !== null))
    return keepRoomForWaiters(candidates, scope, ahead);
  const free = candidates.filter(({ verdict }) => verdict.state === 'free').map(({ gpu }) => gpu.uuid);
  const reserved = reservedFor(free, scope, ahead);
  return candidates.map((candidate) => {
    const waiter = reserved.get(candidate.gpu.uuid);
    if (waiter === undefined) return candidate;
    const reason = `free, but ${describeWaiter(waiter)}`;
    return { ...candidate, verdict: { state: 'leased', reason, transient: false, keptFor: waiter.slot } };
  });
}

/**
 * Gives a request with a time limit free GPUs that are kept for others, if it will have given them back before they are needed, and
 * no request ahead could use them in that way. They are lent as a whole only, not to shares.
 */
export function backfill(
  candidates: Candidate[],
  { count, limitMs, memory }: Pick<DiscoveryDemand, 'count' | 'memory'> & { limitMs?: number | undefined },
  readAhead: () => Iterable<Waiter>,
): Candidate[] {
  if (limitMs === undefined || memory !== undefined) return candidates;
  const missing = count - candidates.filter(({ verdict }) => verdict.state === 'free').length;
  const kept = candidates.filter(({ verdict }) => verdict.keptFor !== undefined).map(({ gpu }) => gpu.uuid);
  if (missing <= 0 || kept.length < missing) return candidates;
  const own = { slot: -1, count: missing, uuids: kept, scope: null, limitMs };
  const chosen = backfilled(kept, [...readAhead(), own], candidates.map(useOf), Date.now()).get(own.slot);
  if (chosen === undefined) return candidates;
  const free: Verdict = { state: 'free', reason: null, transient: false };
  return candidates.map((each) => (chosen.includes(each.gpu.uuid) ? { ...each, verdict: free } : each));
}

/** The slots of those that could use GPUs now which are kept for others. @param waiters in order */
export function backfilledSlots(
  candidates: readonly Candidate[],
  free: Iterable<string>,
  waiters: readonly Waiter[],
): Set<number> {
  return new Set(backfilled([...free], waiters, candidates.map(useOf), Date.now()).keys());
}

/** The use of a GPU, whatever the request's own criteria say of it. */
function useOf({ gpu: { uuid }, verdict, lease }: Candidate): GPUUse {
  const isFree = verdict.state === 'free' || verdict.keptFor !== undefined;
  return { uuid, lease, state: lease !== null ? 'leased' : isFree ? 'free' : verdict.state };
}

/** The wishes of a request. */
interface DiscoveryDemand {
  count: number;
  class?: RequestClass;
  most?: number;
  order?: string;
  memory?: ShareSize;
}

/** The request of a waiter: all GPUs that might become free for it. */
export function gpuRequestOf(
  candidates: readonly Candidate[],
  { count, class: own = 'normal', most, order, memory }: DiscoveryDemand,
  scope: string | null,
): JoiningRequest {
  const uuids = candidates.filter(({ verdict }) => mayBecomeFree(verdict)).map(({ gpu }) => gpu.uuid);
  const limit = most === undefined || scope !== null ? {} : { most };
  const place = order === undefined ? {} : { order };
  const share = memory === undefined ? {} : { memory };
  return { count, uuids, scope, class: own, size: sizeOf(candidates, count), ...limit, ...place, ...share };
}

function describeWaiter({ info, count, memory }: Waiter): string {
  const command = sanitize(info.command, 80);
  const since = formatSince(info.since);
  const who = `${info.user}${info.pid ? ` (pid ${info.pid}${command ? `: ${command}` : ''})` : ''}`;
  return `${who} is ahead in the wait queue, for ${memory === undefined ? '' : `${formatShare(memory)} of `}${count === 1 ? 'a GPU' : `${count} GPUs`}${since ? ` since ${since}` : ''}`;
}

/** @param lease who holds it; null also for a GPU whose lease is ours */
export function evaluateOne(
  gpu: GPU,
  context: EvaluationContext,
  lease: LeaseInfo | null,
  sharing?: Sharing,
): Verdict {
  const { criteria, visible, directory, job } = context;
  const circumstances: JudgeContext = {
    lease,
    // One without a UUID may be the job's: that it has failed says more than that it isn't in the list.
    visible: job !== null && gpu.uuid === '' ? null : visible,
    criteria: job === null ? criteria : withinJob(criteria),
    ofOwnJob: job !== null,
    describe: describeListedProcess,
    ownPids: ownPidsOn(gpu),
    sharing,
    wsl: isWSL(),
    hostname: lease === null && sharing === undefined ? undefined : hostName(),
  };
  const verdict = judge(gpu, circumstances);
  if (directory === null || verdict.state !== 'busy') return verdict;
  // Remains of a holder that has just died, or of another process? Only the former are worth waiting for. A process that still
  // runs right after the end of a lease is most probably its placeholder.
  const transient = verdict.transient
    ? mayHaveRemains(directory, leaseKey(gpu, job))
    : endedWithin(directory, leaseKey(gpu, job), PLACEHOLDER_END_MS);
  return { ...verdict, transient };
}

/** Bans count, but the thresholds of configuration files were for the claim of the job: its own use must not exclude it now. */
function withinJob(criteria: NormalizedCriteria): NormalizedCriteria {
  const { devices, exclude, excludeNames } = criteria;
  return { ...(criteria.ofCall ?? criteria), devices, exclude, excludeNames };
}

const NOBODY: ReadonlySet<number> = new Set();

/** In a container, a number that the driver gives may be this process's and mean another one on the host. */
function ownPidsOn({ processes }: GPU): ReadonlySet<number> {
  return processes?.some(({ pid }) => pid === process.pid) && usesCUDA() ? new Set([process.pid]) : NOBODY;
}

/** Whether this process may be on a GPU: not unless it has initialised CUDA. */
export function usesCUDA(): boolean {
  return native().cudaState(driverLibraries().cuda) === 'initialized';
}

export function reasonsOf(candidates: readonly Candidate[]): GPUReason[] {
  return candidates.map(({ gpu, verdict, lease }) => ({
    index: gpu.index,
    instance: gpu.instance,
    uuid: gpu.uuid,
    reason:
      verdict.state === 'leased' ? `${verdict.reason}${ownLeaseNote(lease)}` : (verdict.reason ?? 'free'),
  }));
}

/** Refuses at once a request that no wait can satisfy. @throws ERR_INVALID_ARGUMENT */
export function refuseImpossible(
  count: number,
  verdicts: readonly { state: GPUState }[],
  reasons: () => readonly GPUReason[],
  bound?: Binding,
  job: ParentJob | null = null,
): void {
  const allowed = verdicts.filter(({ state }) => state !== 'excluded').length;
  if (allowed >= count) return;
  const gpus = reasons();
  const instances = gpus.filter(({ instance }) => typeof instance === 'number').length;
  const there =
    instances === 0
      ? `this machine has ${verdicts.length || 'none'}`
      : `this machine has ${verdicts.length - instances}, and ${instances} MIG instances`;
  const [who, all] =
    job === null
      ? [there, verdicts.length]
      : [`the surrounding \`gpu-owner run\` has claimed only ${job.size}`, job.size];
  const plain = allowed === all || (job !== null && job.size < count);
  const why = plain ? who : `${who}, of which ${Math.min(allowed, all) || 'none'} may be used here`;
  const outside =
    job === null
      ? ''
      : ' (others can be claimed in an environment without GPU_OWNER_JOB and CUDA_VISIBLE_DEVICES)';
  const message = `${count} ${count === 1 ? 'GPU' : 'GPUs'} asked for, but ${why}${outside}`;
  if (bound !== undefined) throw boundElsewhere(bound, message, gpus);
  throw new GPUOwnerError('ERR_INVALID_ARGUMENT', message + listReasons(gpus), { gpus });
}

/** Other GPUs may be free: that doesn't help a process to which CUDA shows only some. */
function boundElsewhere(
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

/** Not enough can be had now. @param outrun other claims took them first each time */
export function unavailable(
  { count, bound }: { count: number; bound?: Binding },
  candidates: readonly Candidate[],
  outrun: boolean,
): GPUOwnerError {
  const problem = candidates.find((each) => each.problem !== null)?.problem;
  const usable = candidates.filter(
    (each) => each.problem === null && each.verdict.state !== 'excluded',
  ).length;
  // No waiting helps then.
  if (problem && usable < count) return problem;
  const reasons = reasonsOf(candidates);
  const message = outrun
    ? 'lost the race for a free GPU several times in a row'
    : notEnough(
        count,
        candidates.map(({ verdict }) => verdict),
      );
  if (bound !== undefined) return boundElsewhere(bound, message, reasons);
  const remedy = outrun ? '; try again, or wait longer' : '';
  return new GPUOwnerError('ERR_GPU_UNAVAILABLE', message + remedy + listReasons(reasons), { gpus: reasons });
}

/** "2 GPUs asked for, only 1 is free" */
export function notEnough(count: number, verdicts: readonly Pick<Verdict, 'state'>[]): string {
  const free = verdicts.filter(({ state }) => state === 'free').length;
  const have = free === 0 ? 'none is free' : `only ${free} ${free === 1 ? 'is' : 'are'} free`;
  return `${count} ${count === 1 ? 'GPU' : 'GPUs'} asked for, ${have}`;
}

export function listReasons(reasons: readonly Omit<GPUReason, 'uuid'>[]): string {
  if (reasons.length === 0) return '.';
  return `:\n${reasons.map((each) => `  GPU ${label(each)}: ${each.reason}`).join('\n')}`;
}
