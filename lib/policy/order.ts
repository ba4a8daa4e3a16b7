/** Classes of requests. The first is served before the others. */
export const CLASSES = ['urgent', 'normal', 'preemptible'] as const;
export type RequestClass = (typeof CLASSES)[number];

/** How requests of one class are ordered: users take turns, or first come, first served. */
type Order = 'fair' | 'fifo';

/** A GPU, in the units of tags. */
const GPU_UNITS = 1_000_000;
/**
 * So long a request waits until that counts as much as a GPU, in ms. Most jobs must be shorter: else newcomers would start
 * behind all that wait.
 */
const AGE_OF_A_GPU_MS = 24 * 3_600_000;
const MAX_UNITS = 1e15;

/** The place of a request in the order: set when the request joins the queue, and never changed. */
export interface Tag {
  class: RequestClass;
  /** Requests of a class are served in the order of their starts. In millionths of a GPU. */
  start: number;
  /** The start, and what is asked for: the same user's next request starts here. */
  end: number;
  /** When it joined, on the boot clock, in ms. */
  joined: number;
  /** The user; null: a claim inside of a job, which is no matter of the machine's queue. */
  uid: number | null;
}

interface Joining {
  class: RequestClass;
  uid: number | null;
  /** How many GPUs are asked for, and how many the user holds now. MIG instances count by their part. */
  size: number;
  held: number;
}

/**
 * The tag of a request that joins: users take turns, who holds or waits for fewer GPUs comes first.
 * @param waiting the tags of all requests that wait @param now on the boot clock, in ms
 */
export function tagFor(
  { class: own, uid, size, held }: Joining,
  waiting: readonly Tag[],
  now: number,
  order: Order,
): Tag {
  const joined = Math.floor(now);
  const units = Math.ceil(size * GPU_UNITS);
  if (uid === null) return { class: own, start: 0, end: units, joined, uid };
  const peers = waiting.filter((tag) => tag.class === own && tag.uid !== null);
  const latest = (values: number[]) => Math.max(0, ...values);
  const start =
    order === 'fifo'
      ? latest(peers.map((tag) => tag.start))
      : Math.max(
          virtualTime(peers, now) + (own === 'preemptible' ? 0 : Math.ceil(held * GPU_UNITS)),
          latest(peers.filter((tag) => tag.uid === uid).map((tag) => tag.end)),
        );
  return { class: own, start, end: start + units, joined, uid };
}

/** The earliest start of newcomers. Grows with the time that requests wait, so no request is overtaken for ever. */
function virtualTime(waiting: readonly Tag[], now: number): number {
  if (waiting.length === 0) return 0;
  const aged = waiting.map(
    ({ start, joined }) => start + Math.max(0, now - joined) * (GPU_UNITS / AGE_OF_A_GPU_MS),
  );
  return Math.floor(Math.min(...aged));
}

/** The tags of one user's requests, put in this order: they share the starts that they have. Other users are overtaken by no more. */
export function inNewOrder(tags: readonly Tag[]): Tag[] {
  const starts = tags.map(({ start }) => start).sort((a, b) => a - b);
  let last = 0;
  return tags.map((tag, i) => {
    const start = Math.max(starts[i] ?? 0, last);
    last = start + tag.end - tag.start;
    return { ...tag, start, end: last };
  });
}

/** How many GPUs a request asks for, where MIG instances count by their part. */
export function sizeOfTag({ start, end }: Pick<Tag, 'start' | 'end'>): number {
  return (end - start) / GPU_UNITS;
}

/** In place of an earlier tag: the request is for GPUs that its user gives up for it, so it comes before all others of its class. */
export const FIRST = 'first';

/** The tag of {@link FIRST}. The request is as old as the machine, so newcomers start where they would without it. */
export function tagOfFirst(tag: Tag): Tag {
  return { ...tag, start: 0, end: tag.end - tag.start, joined: 0 };
}

/** No user has this number: uid -1. */
const NO_USER = 2 ** 32 - 1;
const DIGITS = [1, 16, 16, 16, 10];

/** A tag as text of one length, so that the texts' order is that of the tags. */
export function formatTag({ class: own, start, end, joined, uid }: Tag): string {
  const numbers = [CLASSES.indexOf(own), start, end, joined, uid ?? NO_USER];
  return numbers.map((each, i) => String(each).padStart(DIGITS[i] ?? 0, '0')).join(' ');
}

export const TAG_LENGTH = DIGITS.reduce((sum, digits) => sum + digits + 1, -1);

/** null: this is none. Anybody may have written it. */
export function parseTag(text: string): Tag | null {
  if (!/^[012] \d{16} \d{16} \d{16} \d{10}$/.test(text)) return null;
  const [index = 0, start = 0, end = 0, joined = 0, uid = 0] = text.split(' ').map(Number);
  if (start > MAX_UNITS || end > MAX_UNITS || joined > MAX_UNITS) return null;
  return {
    class: CLASSES[index] ?? 'normal',
    start,
    end: Math.max(start, end),
    joined,
    uid: uid >= NO_USER ? null : uid,
  };
}

/** A place in the queue, and the tag of its request; null: of a release that has none. */
export interface Place {
  slot: number;
  tag: Tag | null;
}

/**
 * The slots in the order in which requests are served. Releases without tags wait for all lower slots, so their requests come
 * right behind these.
 * @param places by slot
 */
export function inOrder(places: readonly Place[]): number[] {
  let behind: Key = { class: 'urgent', start: 0, joined: 0 };
  const keyed = places.map(({ slot, tag }) => {
    const key = tag ?? behind;
    if (compare(behind, key) < 0) behind = key;
    return { slot, class: key.class, start: key.start, joined: key.joined };
  });
  return keyed.sort((a, b) => compare(a, b) || a.slot - b.slot).map(({ slot }) => slot);
}

/** The parts of a tag that make the order. Slots are in the order of joining, but for requests that were preempted and wait again. */
type Key = Pick<Tag, 'class' | 'start' | 'joined'>;

function compare(a: Key, b: Key): number {
  return CLASSES.indexOf(a.class) - CLASSES.indexOf(b.class) || a.start - b.start || a.joined - b.joined;
}
