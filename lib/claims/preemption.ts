// Preemptible leases give way to requests that can't start otherwise. The process that waits decides which ones, and names them in its request;
// their keepers look at it and end their commands. docs/decisions/052-preemption.md
import { closeSync } from 'node:fs';
import { loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { native, SHARED } from '../native.ts';
import { bootMilliseconds, warnOnce } from '../platform/index.ts';
import type { Attempt, Claim } from './claim.ts';
import type { Candidate } from './evaluate.ts';
import { isLocked, type LockDirectory, leaseName, leaseNames, readJobFile } from './locks/index.ts';
import { activeWaiters, lockedEpochs, readWaiters, type Waiter } from './queue/index.ts';
import { type JoiningRequest, type PreemptibleLease, whoGivesWay } from './rules/index.ts';

/** The keepers of preemptible leases watch this file. Any user may write to it: then they look at the wait queue. */
export const PREEMPTION_NOTICE = 'preemption.notice';

/** How long a lease may take to end where the configuration has no `preemptionGrace`, in ms. */
const MAX_PATIENCE_MS = 600_000;
/** How long a keeper may take to see that it is asked, and to end what is left after the grace, in ms. */
const SLACK_MS = 5_000;

/** The leases that have to give way to a request. */
interface Preempted {
  epochs: number[];
  /** When the first of them is overdue, in ms from now; Infinity: none will be. */
  untilOverdue: number;
}

const NONE: Preempted = { epochs: [], untilOverdue: Number.POSITIVE_INFINITY };

/**
 * The leases that have to give way, so that a request whose turn it is can start.
 * @param ahead what they could use is theirs @param asked the leases that the request has asked before; gets those that it asks now
 */
export function leasesToPreempt(
  { candidates, directory }: Attempt,
  gpuRequest: JoiningRequest,
  ahead: Iterable<Waiter>,
  asked: Map<number, number>,
): Preempted {
  const { class: own, scope, count, uuids, sets = [uuids] } = gpuRequest;
  const isAboveLimit = candidates.some(({ verdict }) => verdict.ownLeases !== undefined);
  if (own === 'preemptible' || scope !== null || isAboveLimit) return NONE;
  const wanted = new Set(uuids);
  const isOurs = ({ gpu, verdict }: Candidate) =>
    wanted.has(gpu.uuid) &&
    verdict.state === 'leased' &&
    verdict.keptFor === undefined &&
    verdict.bookedUntil === undefined;
  const leased = candidates.filter(isOurs);
  const leases = readPreemptible(directory, leased, asked);
  if (leases.length === 0) return NONE;
  const taken = new Set([...ahead].filter((each) => each.scope === null).flatMap((each) => each.uuids));
  const usable = leased.map(({ gpu }) => gpu.uuid).filter((uuid) => !taken.has(uuid));
  const free = candidates
    .filter(({ verdict }) => verdict.state === 'free' || verdict.transient)
    .map(({ gpu }) => gpu.uuid);
  const needs = sets.map((set) => ({ set, need: count - free.filter((uuid) => set.includes(uuid)).length }));
  if (needs.some(({ need }) => need <= 0)) return NONE;
  // The set for which the fewest GPUs are given back.
  const cost = (lasting: readonly AskedLease[]) =>
    lasting.reduce((sum, lease) => sum + (lease.isEnding ? 0 : lease.uuids.length), 0);
  const [chosen = []] = needs
    .map(({ set, need }) => whoGivesWay(need, new Set(usable.filter((uuid) => set.includes(uuid))), leases))
    .filter(({ length }) => length > 0)
    .sort((a, b) => cost(a) - cost(b));
  const now = bootMilliseconds();
  for (const { epoch } of chosen) if (!asked.has(epoch)) asked.set(epoch, now);
  const epochs = chosen.map(({ epoch }) => epoch);
  const coming = epochs.map((epoch) => untilOverdue(asked.get(epoch) ?? now)).filter((until) => until > 0);
  return { epochs, untilOverdue: Math.min(...coming, NONE.untilOverdue) };
}

/** How long until a lease that was asked to give way is overdue, in ms; 0 or less: it is. */
function untilOverdue(askedAt: number): number {
  return askedAt + (loadConfiguration().preemptionGrace ?? MAX_PATIENCE_MS) + SLACK_MS - bootMilliseconds();
}

interface AskedLease extends PreemptibleLease {
  uuids: string[];
}

/**
 * The preemptible leases of these GPUs. Decided by locks and the files of jobs, because any user can write a record.
 * @param asked when the request has asked leases
 */
function readPreemptible(
  directory: LockDirectory,
  leased: readonly Candidate[],
  asked: Map<number, number>,
): AskedLease[] {
  const leases = new Map<number, AskedLease>();
  for (const epoch of new Set(leased.flatMap(({ gpu }) => [...epochsIn(directory, leaseName(gpu.uuid))]))) {
    const job = readJobFile(directory, epoch);
    if (job?.isPreemptible !== true) continue;
    const askedAt = asked.get(epoch);
    const isOverdue = askedAt !== undefined && untilOverdue(askedAt) <= 0;
    const isEnding = askedAt !== undefined && !isOverdue;
    leases.set(epoch, { epoch, since: job.madeAt, uuids: [], isEnding, isOverdue });
  }
  // A lease of several GPUs ends as a whole.
  for (const name of leases.size === 0 ? [] : leaseNames(directory))
    for (const epoch of epochsIn(directory, name))
      leases.get(epoch)?.uuids.push(name.replace(/\.lease$/, ''));
  for (const epoch of asked.keys()) if (!leases.has(epoch)) asked.delete(epoch);
  return [...leases.values()];
}

/** The epochs of the holders of a lease, but not of those that hold parts of it. */
function* epochsIn(directory: LockDirectory, name: string): Generator<number> {
  for (const descriptor of directory.filesNamed(name))
    if (isLocked(descriptor, SHARED)) yield* lockedEpochs(descriptor);
}

/** Whether a request needs the GPUs of this claim, which is preemptible. As native/keeper/preemption.cc looks at it. */
export function isPreempted({ directory, leases }: Pick<Claim, 'directory' | 'leases'>): boolean {
  const epoch = leases[0]?.record.generation ?? -1;
  const isOurs = (uuid: string) => leases.some((lease) => lease.uuid === uuid);
  for (const { tag, scope, preempts, uuids } of activeWaiters(readWaiters(directory))) {
    if (tag === null || tag.class === 'preemptible' || scope !== null) continue;
    if (preempts.includes(epoch) && uuids.some(isOurs)) return true;
  }
  return false;
}

/** Has the keepers of preemptible leases look at the wait queue. */
export function notifyPreemptible(directory: LockDirectory): void {
  const descriptor = directory.openIfPossible(PREEMPTION_NOTICE);
  if (descriptor < 0) return; // they look once a minute
  native().fileWriteBlock(descriptor, Buffer.from('\n'));
  closeSync(descriptor);
}

/** Makes the file that the keeper of a preemptible lease watches. */
export function openPreemptionNotice(directory: LockDirectory): void {
  try {
    closeSync(directory.openFile(PREEMPTION_NOTICE));
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    warnOnce(`${error.message} This job looks once a second whether it has to give way.`);
  }
}
