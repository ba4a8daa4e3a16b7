// The free GPUs of a claim that waiters ahead of it keep.
import { mayBecomeFree, type Verdict } from '../gpus/index.ts';
import { formatSince, sanitize } from '../platform/index.ts';
import type { Candidate } from './evaluate.ts';
import { formatShare } from './locks/index.ts';
import { sizeOf, type Waiter } from './queue/index.ts';
import {
  backfilled,
  type DividedGPU,
  type GPUUse,
  type JoiningRequest,
  keepRoom,
  type RequestClass,
  reservedFor,
  type ShareSize,
  type TogetherLimit,
  unitsOf,
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
 * Gives a request with a time limit, or a preemptible one, free GPUs that are kept for others, if it will have given them back before
 * they are needed, and no request ahead could use them in that way. They are lent as a whole only, not to shares.
 */
export function backfill(
  candidates: Candidate[],
  {
    count,
    limitMs = null,
    memory,
    class: priority = 'normal',
  }: Pick<DiscoveryDemand, 'count' | 'memory' | 'class'> & { limitMs?: number | null | undefined },
  readAhead: () => Iterable<Waiter>,
): Candidate[] {
  if ((limitMs === null && priority !== 'preemptible') || memory !== undefined) return candidates;
  const missing = count - candidates.filter(({ verdict }) => verdict.state === 'free').length;
  const reserved = candidates
    .filter(({ verdict }) => verdict.keptFor !== undefined)
    .map(({ gpu }) => gpu.uuid);
  if (missing <= 0 || reserved.length < missing) return candidates;
  const request = {
    slot: -1,
    count: missing,
    uuids: reserved,
    scope: null,
    limitMs,
    tag: { class: priority },
  };
  const chosen = backfilled(reserved, [...readAhead(), request], candidates.map(useOf), Date.now()).get(
    request.slot,
  );
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

/** The use of a GPU, independent of the request's own criteria. */
function useOf({ gpu: { uuid }, verdict, lease }: Candidate): GPUUse {
  const isFree = verdict.state === 'free' || verdict.keptFor !== undefined;
  return { uuid, lease, state: lease !== null ? 'leased' : isFree ? 'free' : verdict.state };
}

/** The wishes of a request. */
interface DiscoveryDemand {
  count: number;
  class?: RequestClass;
  most?: number;
  together?: readonly TogetherLimit[];
  order?: string;
  memory?: ShareSize;
}

/** The request of a waiter: all GPUs that might become free for it. */
export function gpuRequestOf(
  candidates: readonly Candidate[],
  { count, class: own = 'normal', most, together, order, memory }: DiscoveryDemand,
  scope: string | null,
): JoiningRequest {
  // A GPU that is left out for now is no obstacle to others.
  const wanted = candidates.filter(({ verdict }) => mayBecomeFree(verdict) && verdict.retryAt === undefined);
  const uuids = wanted.map(({ gpu }) => gpu.uuid);
  const limit =
    scope !== null
      ? {}
      : { ...(most === undefined ? {} : { most }), ...(together === undefined ? {} : { together }) };
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
