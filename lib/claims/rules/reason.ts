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
  const isOwn = ({ info }: Placed) => info.uid === own.info.uid;
  const others = queue.filter(
    (each, i) => each.scope === null && !isOwn(each) && (i < index || each.slot < own.slot),
  );
  if (others.length === 0) return null;
  const { class: kind } = own.tag;
  if (kind === 'urgent') return 'urgent: before all others';
  if (kind === 'preemptible') return 'preemptible: after all others';
  const ahead = queue.slice(0, index).filter(({ scope, tag }) => scope === null && tag?.class === 'normal');
  const users = [...new Set(ahead.filter((each) => !isOwn(each)).map(({ info }) => info.user))];
  const before = ahead.filter(isOwn).length;
  const named = users.slice(0, MAX_USERS).map((user) => `${user}'s`);
  if (users.length > MAX_USERS) named.push(`${users.length - MAX_USERS} other users'`);
  if (before > 0) named.push(`${before} of ${own.info.user}'s own`);
  const isAfterUrgent = others.some(({ tag }) => tag?.class === 'urgent');
  const turn =
    named.length === 0
      ? `${own.info.user}: next turn`
      : `${own.info.user}: next turn after ${named.join(', ')}`;
  return isAfterUrgent ? `${turn}; urgent requests come first` : turn;
}
