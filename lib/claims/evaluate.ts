import { driverLibraries, type NormalizedCriteria } from '../config/index.ts';
import type { Conventions, Holders } from '../conventions/index.ts';
import { GPUOwnerError } from '../errors.ts';
import {
  byPlace,
  connectedSets,
  describeListedProcess,
  describeSuspect,
  type GPU,
  isDivided,
  isInstance,
  isWSL,
  type JudgeContext,
  judge,
  type LeaseInfo,
  mayBecomeFree,
  offersChoice,
  type Sharing,
  type Suspect,
  select,
  separateKinds,
  type Topology,
  UNKNOWN,
  type Verdict,
} from '../gpus/index.ts';
import { native } from '../native.ts';
import { describeOwner, hostName, sleeping, type Waiting } from '../platform/index.ts';
import {
  endedWithin,
  findUnexplained,
  type Holder,
  type LeaseKey,
  type LockDirectory,
  type LockOwners,
  leaseInfo,
  leaseName,
  levelOf,
  levelOrTop,
  lockedByOtherProgram,
  mayHaveRemains,
  type ParentJob,
  probeLease,
  probeWhole,
  sharingOf,
  topologyOf,
  UNDIVIDED,
  whyLeftOut,
  whyUntakable,
} from './locks/index.ts';
import type { DiscoveryRequest } from './options.ts';
import { bestFit } from './rules/index.ts';

/** How long a placeholder may take to end, in ms. */
const PLACEHOLDER_END_MS = 500;

export interface Candidate {
  gpu: GPU;
  verdict: Verdict;
  lease: LeaseInfo | null;
  /** Missing: there are no shares, and none is asked for. */
  sharing?: Sharing;
  /** CUDA failed there lately; missing: no. */
  suspect?: Suspect;
  /** Why the lease file, or CUDA, can't be used: that spoils this GPU, not the others. */
  problem: GPUOwnerError | null;
}

/** The machine for a request: each GPU with whether it is free, and all that decides on that. A claim goes on with it from look to look. */
export interface Evaluation<Directory extends LockDirectory | null = LockDirectory | null> {
  readonly request: DiscoveryRequest;
  /** When the last look began, on the monotonic clock. */
  seenAt: number;
  /** null: none exists, so nothing is leased. */
  readonly directory: Directory;
  /** The job inside of which the claim is made, from the GPUs that it holds; null: from the machine's. */
  readonly job: ParentJob | null;
  /** UUIDs that this process may use at all; null: all. */
  readonly visible: ReadonlySet<string> | null;
  readonly conventions: Conventions;
  /** Holders of GPUs by the locks of other programs, as they were read last. */
  foreignHolders: Holders;
  /** The GPUs on which CUDA failed lately. */
  readonly suspects: ReadonlyMap<string, Suspect>;
  /** Whether GPUs on which CUDA has just failed for this process don't count as free. */
  readonly leavesOut: boolean;
  /** How the machine's GPUs are connected, where only connected ones will do; null: of no interest, or the driver doesn't tell. */
  readonly connections: Topology | null;
  /** The GPUs as last judged. */
  candidates: Candidate[];
}

const NOT_OF_THE_JOB: Verdict = {
  state: 'excluded',
  reason: 'not among the GPUs of the surrounding `gpu-owner run`',
  transient: false,
};

/** Every GPU with whether it is free, or why not. Takes nothing. */
export function evaluateAll(gpus: readonly GPU[], evaluation: Evaluation): Candidate[] {
  const { request, directory, job, foreignHolders, suspects, leavesOut } = evaluation;
  const candidates = gpus.map((gpu): Candidate => {
    const leasable = directory !== null && gpu.uuid !== '';
    const key = leaseKey(gpu, job);
    if (job !== null && leasable && levelOf(directory, key) === null) {
      return { gpu, verdict: NOT_OF_THE_JOB, lease: null, problem: null };
    }
    const { lease: own, sharing } = leasable ? readHolding(directory, gpu, evaluation) : NOT_HELD;
    const lease = own ?? foreignHolders.get(gpu.uuid) ?? null;
    const problem = leasable && lease === null ? whyNotTaken(directory, key, sharing) : null;
    const verdict = evaluateOne(gpu, evaluation, lease, sharing);
    const suspect = suspects.get(gpu.uuid);
    const candidate = applyProblem({
      gpu,
      verdict,
      lease,
      problem,
      ...(sharing === undefined ? {} : { sharing }),
      ...(suspect === undefined ? {} : { suspect }),
    });
    return leavesOut ? leaveOut(candidate) : candidate;
  });
  return leaveOutUnconnected(separateKinds(candidates, request.count), evaluation);
}

/** The sets of GPUs, all of which may become free for a request, of which one has to have enough. */
export function setsFor(
  candidates: readonly Candidate[],
  { request: { count, isConnected }, connections }: Evaluation,
): string[][] {
  const wanted = candidates.filter(({ verdict }) => mayBecomeFree(verdict));
  const uuids = wanted.map(({ gpu }) => gpu.uuid);
  return isConnected ? connectedSets(connections, uuids, count) : [uuids];
}

/**
 * Leaves a request for connected GPUs those that are connected with enough others.
 * @throws ERR_INVALID_ARGUMENT where this machine has no such GPUs
 */
function leaveOutUnconnected(candidates: Candidate[], evaluation: Evaluation): Candidate[] {
  const { request, connections } = evaluation;
  const { count, isConnected, criteria } = request;
  const allowed = candidates.filter(({ verdict }) => verdict.state !== 'excluded');
  if (isConnected !== true || allowed.length < count) return candidates; // the latter is refused in any case
  const uuids = allowed.map(({ gpu }) => gpu.uuid);
  const ever = new Set(connectedSets(connections, uuids, count).flat());
  if (ever.size === 0) {
    const most = Math.max(1, ...connectedSets(connections, uuids, 2).map((set) => set.length));
    const why =
      connections === null || connections.links.includes(UNKNOWN)
        ? "the driver doesn't tell how GPUs are connected"
        : `of those that may be used here, ${most === 1 ? 'no two' : `at most ${most}`} are connected by NVLink or one PCIe switch`;
    const name = criteria.names.together ?? 'together';
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `${count} connected GPUs asked for (${name}), but ${why}. ${most === 1 ? '' : 'Ask for fewer, or '}${most === 1 ? 'Leave' : 'leave'} out ${name}; \`gpu-owner status --topology\` shows the connections.`,
    );
  }
  const usable = new Set(setsFor(candidates, evaluation).flat());
  return candidates.map((each) => {
    const { state } = each.verdict;
    if (state === 'excluded' || usable.has(each.gpu.uuid) || !mayBecomeFree(each.verdict)) return each;
    const others = count === 2 ? 'another GPU' : `${count - 1} others`;
    const verdict: Verdict = ever.has(each.gpu.uuid)
      ? { state: 'unavailable', reason: `not connected with ${others} that can be used`, transient: false }
      : { state: 'excluded', reason: `not connected with ${others}`, transient: false };
    return { ...each, verdict };
  });
}

function whyNotTaken(directory: LockDirectory, key: LeaseKey, sharing?: Sharing): GPUOwnerError | null {
  return sharing?.isDamaged === true
    ? lockedByOtherProgram(directory, nameOfLease(directory, key))
    : whyUntakable(directory, key);
}

function nameOfLease(directory: LockDirectory, key: LeaseKey): string {
  const level = levelOrTop(directory, key);
  return leaseName(level.uuid, level.depth);
}

/** How long a holder may take to write its record, in ms. */
const RECORD_WRITE_MS = 5;

/** The same, with what the kernel tells of locks without a record of their holder. For people. */
export function* explainLocks(evaluation: Evaluation): Waiting<Candidate[]> {
  const { candidates, directory, job } = evaluation;
  const isUnexplained = ({ lease, verdict: { state } }: Candidate) => state === 'leased' && isStranger(lease);
  if (directory === null || !candidates.some(isUnexplained)) return candidates;
  yield* sleeping(RECORD_WRITE_MS);
  return candidates.map((candidate) => {
    if (!isUnexplained(candidate)) return candidate;
    const { gpu, sharing } = candidate;
    const key = leaseKey(gpu, job);
    const lease = whoHolds(directory, gpu, key)?.info ?? candidate.lease;
    if (!isStranger(lease))
      return { ...candidate, lease, verdict: evaluateOne(gpu, evaluation, lease, sharing) };
    const found = findUnexplained(directory, key);
    return found === null ? candidate : { ...candidate, ...explain(candidate, found) };
  });
}

function isStranger(lease: LeaseInfo | null): boolean {
  return (lease?.nested ?? lease)?.stranger === true;
}

function explain(
  { lease, verdict }: Candidate,
  { path, owners, isRemoved }: LockOwners,
): Pick<Candidate, 'lease' | 'verdict'> {
  const [owner] = owners;
  const removed = `but its lease file was removed from ${path}`;
  if (owner === undefined) {
    const reason = isRemoved
      ? `leased, ${removed}: as root, \`fuser -v ${path}\` shows the holder`
      : `locked by a program that is not a gpu-owner claim, or whose record can't be read: as root, \`fuser -v ${path}\` shows it`;
    return { lease, verdict: { ...verdict, reason } };
  }
  const { uid, pid, name } = owner;
  const user = owner.user ?? 'somebody';
  const holder: LeaseInfo = { ...leaseInfo(null), user, uid, pid, command: name, stranger: true };
  const reason = isRemoved
    ? `leased by ${describeOwner(owner)}, ${removed}`
    : owner.isClaim
      ? `leased by ${describeOwner(owner)}, which couldn't write its record`
      : `locked by ${describeOwner(owner)}, which is not a gpu-owner claim: end it with \`kill ${owner.pid}\``;
  return {
    lease: lease?.nested === undefined ? holder : { ...lease, nested: holder },
    verdict: { ...verdict, reason },
  };
}

export function leaseKey({ uuid, parent }: GPU, job: ParentJob | null): LeaseKey {
  return { uuid, parent, job: job?.epoch ?? null };
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
/** Retries when a share ends between the two reads. */
const MAX_LOOKS = 4;

function readHolding(directory: LockDirectory, gpu: GPU, { job, request: { memory } }: Evaluation): Holding {
  for (let i = 1; ; i++) {
    const holder = whoHolds(directory, gpu, leaseKey(gpu, job));
    const isPart = holder?.isPart === true;
    const division = isPart || isDivided(gpu) ? undefined : UNDIVIDED;
    const sharing = sharingOf(directory, gpu, { job, memory }, division);
    if (sharing !== undefined && sharing.taken > 0) return { lease: null, sharing };
    if (!isPart || i === MAX_LOOKS) return { lease: holder?.info ?? null, sharing };
  }
}

/** Leaves out a free GPU on which CUDA has just failed for this process. */
function leaveOut(candidate: Candidate): Candidate {
  const { gpu, verdict, suspect } = candidate;
  const why = verdict.state === 'free' ? whyLeftOut(gpu.uuid) : null;
  if (why === null) return candidate;
  const { error: problem, until: retryAt } = why;
  const reason = suspect === undefined ? problem.message : describeSuspect(suspect);
  return { ...candidate, problem, verdict: { state: 'unavailable', reason, transient: false, retryAt } };
}

/** Makes a GPU unavailable whose lease file can't be used. */
export function applyProblem(candidate: Candidate): Candidate {
  const { problem, verdict } = candidate;
  if (problem === null || verdict.state === 'excluded' || verdict.state === 'unavailable') return candidate;
  return { ...candidate, verdict: { state: 'unavailable', reason: problem.message, transient: false } };
}

/** Claims within the same job share a wait queue. */
export function scopeOf(job: ParentJob | null): string | null {
  return job === null ? null : String(job.epoch);
}

/** The connections of the machine's GPUs, if they can decide which of the free ones a claim takes. */
export function topologyFor({
  request: { count, memory, isConnected },
  candidates,
  directory,
  connections,
}: Evaluation): Topology | null {
  if (isConnected === true || memory !== undefined) return connections;
  const whole = candidates.filter(({ gpu, verdict }) => verdict.state === 'free' && !isInstance(gpu));
  const gpus = candidates.map(({ gpu }) => gpu);
  return offersChoice(whole.length, count) ? topologyOf(directory, gpus) : null;
}

/**
 * Chooses among the GPUs that are free, or have room for the share that is asked for, suspect ones last; null: there aren't so
 * many, or none that are connected where only such will do.
 * @param topology see {@link topologyFor}
 */
export function chooseFree({ candidates, request }: Evaluation, topology: Topology | null): GPU[] | null {
  const free = candidates.filter(({ verdict }) => verdict.state === 'free');
  const trusted = free.filter((each) => !isSuspect(each));
  // The longest ago CUDA failed, the more it may work again.
  const suspects = free.filter(isSuspect).sort((a, b) => (a.suspect?.at ?? 0) - (b.suspect?.at ?? 0));
  for (let i = 0; i <= suspects.length; i++) {
    const chosen = choose([...trusted, ...suspects.slice(0, i)], request, topology);
    if (chosen !== null) return chosen;
  }
  return null;
}

/** Whether the claimant takes the GPU only if it must. */
export function isSuspect({ suspect }: Candidate): boolean {
  return suspect?.isCounted === true;
}

function choose(
  free: readonly Candidate[],
  { count, isConnected }: DiscoveryRequest,
  topology: Topology | null,
): GPU[] | null {
  const rooms = free.flatMap(({ gpu, verdict: { room } }) =>
    room === undefined ? [] : [{ gpu, room: room.room }],
  );
  if (rooms.length === 0) {
    return select(
      free.map(({ gpu }) => gpu),
      count,
      topology,
      isConnected,
    );
  }
  rooms.sort((a, b) => Number(a.gpu.displayActive === true) - Number(b.gpu.displayActive === true));
  return (
    bestFit(rooms, count)
      ?.map(({ gpu }) => gpu)
      .sort(byPlace) ?? null
  );
}

/** @param lease who holds it; null also for a GPU whose lease is ours */
export function evaluateOne(
  gpu: GPU,
  { request, visible, directory, job }: Evaluation,
  lease: LeaseInfo | null,
  sharing?: Sharing,
): Verdict {
  const { criteria, claimantPid } = request;
  const context: JudgeContext = {
    lease,
    // One without a UUID may be the job's: that it has failed says more than that it isn't in the list.
    visible: job !== null && gpu.uuid === '' ? null : visible,
    criteria: job === null ? criteria : withinJob(criteria),
    ofOwnJob: job !== null,
    describe: describeListedProcess,
    ownPids: claimantPid === undefined ? ownPidsOn(gpu) : new Set([claimantPid]),
    sharing,
    wsl: isWSL(),
    hostname: lease === null && sharing === undefined ? undefined : hostName(),
  };
  const verdict = judge(gpu, context);
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
  const { devices, exclude } = criteria;
  return { ...(criteria.ofCall ?? criteria), devices, exclude };
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
