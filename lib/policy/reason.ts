import type { Tag } from './order.ts';

/** A request in the queue, for {@link whyHere}. */
interface Placed {
  slot: number;
  /** null: within a job. */
  scope: string | null;
  tag: Tag | null;
  info: { user: string; uid: number | null };
}

/** So many users are named. */
const MAX_USERS = 4;

/**
 * Why a request has its place in the queue, in words; null: no other user is concerned.
 * @param queue in order @param held how many GPUs each user holds, by uid
 */
export function whyHere(
  index: number,
  queue: readonly Placed[],
  held: ReadonlyMap<number, { gpus: number }>,
): string | null {
  const own = queue[index];
  if (own === undefined || own.scope !== null) return null;
  const isOwn = ({ info }: Placed) => info.uid === own.info.uid;
  const others = queue.filter(
    (each, i) => each.scope === null && !isOwn(each) && (i < index || each.slot < own.slot),
  );
  if (own.tag === null)
    return others.length === 0
      ? null
      : 'of an older release, whose requests come behind those that had joined before';
  const { class: kind } = own.tag;
  if (kind === 'urgent') return 'urgent: before all others';
  if (kind === 'preemptible') return others.length === 0 ? null : 'preemptible: behind all others';
  const peers = others.filter(({ tag }) => tag === null || tag.class === 'normal');
  const urgent = others.length > peers.length && others.some(({ tag }) => tag?.class === 'urgent');
  const before = queue.slice(0, index).filter(isOwn).length;
  const has = ({ info }: Placed) => {
    const count = Math.round((held.get(info.uid ?? -1)?.gpus ?? 0) * 10) / 10;
    return count === 0 ? 'no GPU' : `${count} ${count === 1 ? 'GPU' : 'GPUs'}`;
  };
  const users = [...new Map(peers.map((each) => [each.info.uid, each])).values()].slice(0, MAX_USERS);
  const words = users.map((each) => `${each.info.user} ${has(each)}`);
  const earlier =
    before === 0 ? '' : ` and ${before} ${before === 1 ? 'request' : 'requests'} before this one`;
  if (words.length > 0) words.unshift(`${own.info.user} has ${has(own)}${earlier}`);
  if (urgent) words.push('urgent requests come first');
  return words.length === 0 ? null : words.join(', ');
}
