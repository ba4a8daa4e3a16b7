// The order of one user's own requests in the wait queue.
import { native } from '../native.ts';
import { formatTag, inNewOrder, type Tag } from '../policy/index.ts';
import type { LockDirectory } from './lock-directory.ts';
import { lockJoining, stampOrder, tagOffset, WAIT_QUEUE_FILE, type Waiter, WaitQueue } from './wait-queue.ts';

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
  const turn = lockJoining(directory);
  const queue = WaitQueue.open(directory);
  const descriptor = directory.openIfPossible(WAIT_QUEUE_FILE);
  try {
    if (queue === null || descriptor < 0) return isMeant.map(() => false);
    const own = [...queue.waiters(queue.order())].filter(
      (waiter): waiter is Tagged => waiter.scope === null && waiter.tag?.uid === uid,
    );
    const found = isMeant.map((isThis) => own.find(isThis));
    for (const kind of new Set(own.map(({ tag }) => tag.class))) {
      const ofKind = own.filter(({ tag }) => tag.class === kind);
      const first = found.filter((each) => each !== undefined && each.tag.class === kind) as Tagged[];
      const inOrder = [...new Set([...first, ...ofKind])];
      for (const [i, tag] of inNewOrder(inOrder.map((each) => each.tag)).entries()) {
        native().fileWriteBlock(
          descriptor,
          Buffer.from(formatTag(tag)),
          tagOffset((inOrder[i] as Tagged).slot),
        );
      }
    }
    stampOrder(descriptor);
    return found.map((each) => each !== undefined);
  } finally {
    queue?.close();
    for (const each of [descriptor, turn]) if (each >= 0) native().fileClose(each);
  }
}
