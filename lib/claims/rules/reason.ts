import type { Tag } from './order.ts';

/** A request in the queue, for {@link whyHere}. */
interface Placed {
  slot: number;
  /** null: within a job. */
  scope: string | null;
  tag: Tag | null;
  info: { user: string; uid: number | null };
}

/** How many users are named. */
const MAX_USERS = 4;

/**
 * Why a request has its place in the queue, in words; null: no other user is concerned.
 * @param queue in order
 */
export function whyHere(index: number, queue: readonly Placed[]): string | null {
  const own = queue[index];
  if (own === undefined || own.scope !== null || own.tag === null) return null;
  const users = new Set<string>();
  let [before, hasOthers, isAfterUrgent] = [0, false, false];
  // Each request of a queue looks at all of it, so no list is made of them.
  for (let i = 0; i < queue.length; i++) {
    const { scope, tag, slot, info } = queue[i] as Placed;
    if (scope !== null || (i >= index && slot >= own.slot)) continue;
    const isNormal = i < index && tag?.class === 'normal';
    if (info.uid === own.info.uid) {
      if (isNormal) before++;
      continue;
    }
    hasOthers = true;
    if (tag?.class === 'urgent') isAfterUrgent = true;
    if (isNormal) users.add(info.user);
  }
  if (!hasOthers) return null;
  const { class: kind } = own.tag;
  if (kind === 'urgent') return 'urgent: before all others';
  if (kind === 'preemptible') return 'preemptible: after all others';
  const named = [...users].slice(0, MAX_USERS).map((user) => `${user}'s`);
  if (users.size > MAX_USERS) named.push(`${users.size - MAX_USERS} other users'`);
  if (before > 0) named.push(`${before} of ${own.info.user}'s own`);
  const turn =
    named.length === 0
      ? `${own.info.user}: next turn`
      : `${own.info.user}: next turn after ${named.join(', ')}`;
  return isAfterUrgent ? `${turn}; urgent requests come first` : turn;
}
