// The order of one user's own requests in the wait queue.

import { machineUid, now } from '../../platform/index.ts';
import type { LockDirectory } from '../locks/index.ts';
import {
  bookingInTheWay,
  findBlockers,
  formatTag,
  inNewOrder,
  type RequestClass,
  reservedFor,
  type Tag,
} from '../rules/index.ts';
import { bookedRequest, bookingOf, describeBooking, readBookings } from './booking-files.ts';
import { holdingsWhenAsked, reachedLimit } from './holdings.ts';
import { changeTags } from './queue-file.ts';
import { readWaiters, type Waiter, WaitQueue } from './wait-queue.ts';

type Tagged = Waiter & { tag: Tag };

/**
 * Puts requests of this user before the user's other ones, in the given order. Requests of other users stay where they are.
 * @param isMeant whether a request is the nth that is meant @returns which of them wait in the queue
 */
export function putFirst(
  directory: LockDirectory,
  isMeant: readonly ((waiter: Waiter) => boolean)[],
): boolean[] {
  const uid = process.geteuid?.();
  const found = changeTags(directory, (write) => {
    const queue = WaitQueue.open(directory);
    try {
      const own = [...(queue?.waiters(queue.order()) ?? [])].filter(
        (waiter): waiter is Tagged => waiter.scope === null && waiter.tag?.uid === uid,
      );
      const found = isMeant.map((isThis) => own.find(isThis));
      for (const kind of new Set(own.map(({ tag }) => tag.class))) {
        const ofKind = own.filter(({ tag }) => tag.class === kind);
        const first = found.filter((each) => each !== undefined).filter(({ tag }) => tag.class === kind);
        const inOrder = [...new Set([...first, ...ofKind])];
        const tags = inNewOrder(inOrder.map((each) => each.tag));
        for (const [i, { slot, tag }] of inOrder.entries()) write(slot, tags[i] ?? tag);
      }
      return found.map((each) => each !== undefined);
    } finally {
      queue?.close();
    }
  });
  return found ?? isMeant.map(() => false);
}

/** Wakes waiters of this user: what a request is has changed. */
export function wakeRequest(directory: LockDirectory, isMeant: (waiter: Waiter) => boolean): void {
  const uid = process.geteuid?.();
  changeTags(directory, (write) => {
    const queue = WaitQueue.open(directory);
    for (const waiter of queue?.waiters(queue.order()) ?? []) {
      const { slot, scope, tag } = waiter;
      if (scope === null && tag?.uid === uid && tag !== null && isMeant(waiter)) write(slot, younger(tag));
    }
    queue?.close();
  });
}

/** A request that isn't what it was is news to those that follow it, and to its own waiter. */
function younger(tag: Tag): Tag {
  return { ...tag, joined: tag.joined + 1 };
}

/**
 * Wakes the waiters that follow requests which no longer delay others, because this user has just got GPUs: other requests of
 * this user, or of a group of the user.
 * @param got how many GPUs @param served the place of the request that got them, which is left soon; null: it has none
 */
export function wakeThoseBehind(directory: LockDirectory, got: number, served: number | null): void {
  const uid = process.geteuid?.() ?? 0;
  const queue = WaitQueue.open(directory);
  if (queue === null) return;
  try {
    const holdings = holdingsWhenAsked(directory);
    const waiters = [...queue.waiters(queue.order(), holdings)].filter(
      ({ slot, scope, isSuspended }) => scope === null && !isSuspended && slot !== served,
    );
    if (!waiters.some((waiter) => waiter.isAboveLimit)) return;
    const { gpus, uuids } = holdings().get(uid) ?? { gpus: 0, uuids: [] };
    const before = new Map([...holdings(), [uid, { gpus: gpus - got, uuids }]]);
    const isHeldUp = (waiter: Waiter): waiter is Tagged =>
      waiter.isAboveLimit &&
      waiter.tag?.uid != null &&
      reachedLimit({ ...waiter, uid: waiter.tag.uid }, () => before) === null;
    const passed = new Set(waiters.filter(isHeldUp));
    const awaited = new Set<Waiter>();
    const ahead: Waiter[] = [];
    for (const waiter of waiters) {
      if (!waiter.isAboveLimit) {
        for (const each of findBlockers(waiter, ahead.toReversed())) awaited.add(each);
        for (const each of reservedFor(waiter.uuids, null, ahead).values()) awaited.add(each);
      }
      if (!waiter.isAboveLimit || passed.has(waiter as Tagged)) ahead.push(waiter);
    }
    const woken = [...passed].filter((each) => awaited.has(each));
    if (woken.length === 0) return;
    changeTags(directory, (write) => {
      for (const { slot, tag } of woken) {
        if (queue.tag(slot)?.joined === tag.joined) write(slot, younger(tag));
      }
    });
  } finally {
    queue.close();
  }
}

/**
 * Why a job of this user that runs can't use its GPUs until a later time: they are booked by others then, or a request waits for them that
 * came before it, and that it overtook as it was short. null: it can.
 * @param order its tag in the wait queue, as text; null: it had none @param started when it started; times are in ms since 1970
 */
export function whyNotLonger(
  directory: LockDirectory,
  gpus: readonly { index: number; uuid: string; parent?: string | null }[],
  {
    class: own,
    order,
    started,
    end,
  }: { class: RequestClass; order: string | null; started: number; end: number },
): string | null {
  const at = Date.now();
  const uid = process.geteuid?.() ?? 0;
  const request = bookedRequest(machineUid(), own, end - at);
  const bookings = readBookings(directory, at);
  for (const gpu of gpus) {
    const booking = bookingOf(gpu, (uuid) => bookingInTheWay(uuid, request, bookings, at));
    if (booking !== null) return `GPU ${gpu.index} is ${describeBooking(booking, at)}`;
  }
  if (own === 'preemptible') return null;
  const startedAt = now() - (at - started);
  for (const { uuids, scope, tag, info, isAboveLimit, isSuspended } of readWaiters(directory)) {
    const wanted = gpus.find(({ uuid }) => uuids.includes(uuid));
    if (wanted === undefined || scope !== null || tag === null || isAboveLimit || isSuspended) continue;
    const wasAhead = tag.joined < startedAt && (order === null || formatTag(tag) < order);
    if (wasAhead && tag.uid !== uid)
      return `${info.user} waits for GPU ${wanted.index}, and came before it; it got the GPU because it is short`;
  }
  return null;
}
