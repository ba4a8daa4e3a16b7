// The free GPUs of a claim that waiters ahead of it keep.
import type { Verdict } from '../gpus/index.ts';
import { formatSince, sanitize } from '../platform/index.ts';
import { type Candidate, type Evaluation, scopeOf, setsFor } from './evaluate.ts';
import { formatShare } from './locks/index.ts';
import {
  activeWaiters,
  applyBookings,
  applyLimit,
  readWaiters,
  type StallDetector,
  sizeOf,
  type Waiter,
} from './queue/index.ts';
import {
  backfilled,
  type DividedGPU,
  freeTimes,
  type GPUUse,
  type JoiningRequest,
  keepRoom,
  mostUsable,
  reservedFor,
  unitsOf,
  withKeptSets,
} from './rules/index.ts';

/** GPUs that are free, or would be if none of them was kept for a waiter ahead. */
export function freeOrKept(candidates: readonly Candidate[]): Candidate[] {
  return candidates.filter(({ verdict }) => verdict.state === 'free' || verdict.keptFor !== undefined);
}

/** Whether a waiter could take a GPU that is free for this claim: a share may leave too little of it. */
function couldTake({ memory }: Pick<Waiter, 'memory'>, { sharing, verdict: { room } }: Candidate): boolean {
  if (memory === undefined) return (sharing?.taken ?? 0) === 0;
  return room === undefined || !sharing?.capacity || unitsOf(memory, sharing.capacity) <= room.room;
}

/** The waiters ahead, in order, each for connected GPUs with the set that is kept for it. Whatever this claim itself may use. */
export function keepSets(
  ahead: Iterable<Waiter>,
  candidates: readonly Candidate[],
  scope: string | null,
): Iterable<Waiter> {
  return withKeptSets(ahead, scope, freeTimes(candidates.map(useOf), Date.now()));
}

/** All requests of a queue, in order, each for connected GPUs with the set that is kept for it. For those who show them. */
export function showKeptSets(waiters: readonly Waiter[], gpus: readonly GPUUse[]): Waiter[] {
  const freeAt = freeTimes(gpus, Date.now());
  return waiters.map((waiter, i) => {
    if (waiter.sets === undefined) return waiter;
    const upToThis = [...activeWaiters(waiters.slice(0, i)), waiter];
    return [...withKeptSets(upToThis, waiter.scope, freeAt)].at(-1) ?? waiter;
  });
}

/** The waiters, each without the GPUs that are free for this claim, but not for that waiter. */
function withoutTooSmall<Waiting extends Waiter>(
  waiters: readonly Waiting[],
  candidates: readonly Candidate[],
): Waiting[] {
  const free = freeOrKept(candidates);
  return waiters.map((waiter) => {
    const tooSmall = new Set(free.filter((each) => !couldTake(waiter, each)).map(({ gpu }) => gpu.uuid));
    return { ...waiter, uuids: waiter.uuids.filter((uuid) => !tooSmall.has(uuid)) };
  });
}

/**
 * Notes which waiters could take what is free.
 * @param slot the claimant's own; null: it has none, and all are ahead
 * @returns the waiters ahead
 */
export function observeStalls(
  stallDetector: StallDetector,
  { candidates, directory, job }: Evaluation,
  slot: number | null,
  at: number,
): Waiter[] {
  const scope = scopeOf(job);
  const free = new Set(freeOrKept(candidates).map(({ gpu }) => gpu.uuid));
  const waiters = free.size === 0 ? [] : activeWaiters(readWaiters(directory, slot));
  const all = [...waiters].filter((each) => each.scope === scope);
  const ahead = withoutTooSmall([...keepSets(all, candidates, scope)], candidates);
  stallDetector.observe(ahead, free, at, backfilledSlots(candidates, free, ahead));
  return all;
}

/** Whether enough GPUs are free. */
export function hasEnough(candidates: readonly Candidate[], gpuRequest: JoiningRequest): boolean {
  const free = candidates.filter(({ verdict }) => verdict.state === 'free').map(({ gpu }) => gpu.uuid);
  return mostUsable(gpuRequest, (uuid) => free.includes(uuid)) >= gpuRequest.count;
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
  const kept = keepRoom(divided, scope, keepSets(ahead, candidates, scope));
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
  const kept = keepRoom(divided, scope, keepSets(ahead, candidates, scope));
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
  const reserved = reservedFor(free, scope, keepSets(ahead, candidates, scope));
  return candidates.map((candidate) => {
    const waiter = reserved.get(candidate.gpu.uuid);
    if (waiter === undefined) return candidate;
    const reason = `free, but ${describeWaiter(waiter)}`;
    return { ...candidate, verdict: { state: 'leased', reason, transient: false, keptFor: waiter.slot } };
  });
}

/** The GPUs of a claimant, without the free ones that are booked, that waiters ahead could use, or that would be more than the user may have. */
export function leaveToOthers(evaluation: Evaluation, ahead: () => Iterable<Waiter>): Candidate[] {
  const { candidates, request, directory, job } = evaluation;
  if (job !== null) return reserveForWaiters(candidates, scopeOf(job), ahead());
  const unreserved = reserveForWaiters(applyBookings(candidates, request, directory), null, ahead());
  return applyLimit(backfill(unreserved, evaluation, ahead), request, directory);
}

/**
 * Gives a request with a time limit, or a preemptible one, free GPUs that are kept for others, if it will have given them back before
 * they are needed, and no request ahead could use them in that way. They are lent as a whole only, not to shares.
 */
function backfill(
  candidates: Candidate[],
  evaluation: Evaluation,
  readAhead: () => Iterable<Waiter>,
): Candidate[] {
  const { count, limitMs = null, memory, class: priority = 'normal' } = evaluation.request;
  if ((limitMs === null && priority !== 'preemptible') || memory !== undefined) return candidates;
  const among = (set: readonly string[], isMeant: (verdict: Verdict) => boolean) =>
    candidates
      .filter(({ gpu, verdict }) => set.includes(gpu.uuid) && isMeant(verdict))
      .map(({ gpu }) => gpu.uuid);
  const sets = setsFor(candidates, evaluation).map((set) => ({
    missing: count - among(set, ({ state }) => state === 'free').length,
    reserved: among(set, ({ keptFor }) => keptFor !== undefined),
  }));
  if (sets.some(({ missing }) => missing <= 0)) return candidates;
  for (const { missing, reserved } of sets) {
    if (reserved.length < missing) continue;
    const request = {
      slot: -1,
      count: missing,
      uuids: reserved,
      scope: null,
      limitMs,
      tag: { class: priority },
    };
    const ahead = [...keepSets(readAhead(), candidates, null), request];
    const chosen = backfilled(reserved, ahead, candidates.map(useOf), Date.now()).get(request.slot);
    if (chosen === undefined) continue;
    const free: Verdict = { state: 'free', reason: null, transient: false };
    return candidates.map((each) => (chosen.includes(each.gpu.uuid) ? { ...each, verdict: free } : each));
  }
  return candidates;
}

/** The slots of those that could use GPUs now which are kept for others. @param waiters in order */
function backfilledSlots(
  candidates: readonly Candidate[],
  free: Iterable<string>,
  waiters: readonly Waiter[],
): Set<number> {
  return new Set(backfilled([...free], waiters, candidates.map(useOf), Date.now()).keys());
}

/** The use of a GPU, independent of the request's own criteria. */
function useOf({ gpu: { uuid }, verdict, lease, sharing }: Candidate): GPUUse {
  const isFree = verdict.state === 'free' || verdict.keptFor !== undefined;
  const state = isFree ? 'free' : verdict.state;
  return { uuid, lease, state: lease !== null ? 'leased' : (sharing?.taken ?? 0) > 0 ? 'shared' : state };
}

/** The request of a waiter: all GPUs that might become free for it. */
export function gpuRequestOf(evaluation: Evaluation): JoiningRequest {
  const { candidates, request, job } = evaluation;
  const { count, class: own = 'normal', most, together, order, memory } = request;
  const scope = scopeOf(job);
  // A GPU that is left out for now is no obstacle to others.
  const sets = setsFor(
    candidates.filter(({ verdict }) => verdict.retryAt === undefined),
    evaluation,
  );
  const uuids = [...new Set(sets.flat())];
  const choice = sets.length > 1 ? { sets } : {};
  const limit =
    scope !== null
      ? {}
      : { ...(most === undefined ? {} : { most }), ...(together === undefined ? {} : { together }) };
  const place = order === undefined ? {} : { order };
  const share = memory === undefined ? {} : { memory };
  const size = sizeOf(candidates, count);
  return { count, uuids, ...choice, scope, class: own, size, ...limit, ...place, ...share };
}

function describeWaiter({ info, count, memory, sets }: Waiter): string {
  const command = sanitize(info.command, 80);
  const since = formatSince(info.since);
  const who = `${info.user}${info.pid ? ` (pid ${info.pid}${command ? `: ${command}` : ''})` : ''}`;
  return `${who} is ahead in the wait queue, for ${memory === undefined ? '' : `${formatShare(memory)} of `}${count === 1 ? 'a GPU' : `${count} ${sets === undefined ? '' : 'connected '}GPUs`}${since ? ` since ${since}` : ''}`;
}
