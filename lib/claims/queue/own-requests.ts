// The order of one user's own requests in the wait queue.

import type { LockDirectory } from '../locks/index.ts';
import { findBlockers, inNewOrder, reservedFor, type Tag } from '../rules/index.ts';
import { holdingsWhenAsked, reachedLimit } from './holdings.ts';
import { changeTags } from './queue-file.ts';
import { type Waiter, WaitQueue } from './wait-queue.ts';

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

/**
 * Wakes the waiters that follow requests which no longer delay others, because this user has just got GPUs: other requests of
 * this user, or of a group of the user. A request that isn't what it was is news to them: it is made a millisecond younger.
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
        if (queue.tag(slot)?.joined === tag.joined) write(slot, { ...tag, joined: tag.joined + 1 });
      }
    });
  } finally {
    queue.close();
  }
}
