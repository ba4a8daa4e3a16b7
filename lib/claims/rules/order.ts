/** Classes of requests. The first is served before the others. */
export const CLASSES = ['urgent', 'normal', 'preemptible'] as const;
export type RequestClass = (typeof CLASSES)[number];

/** How requests of one class are ordered: users take turns, or first come, first served. */
type Order = 'fair' | 'fifo';

/** A GPU for an hour, in the units of tags. */
const GPU_HOUR = 1_000_000;
const MAX_UNITS = 1e15;
/** A job counts as long as this at least and at most, in hours. A user of whom nothing is known has the shortest ones. */
const MIN_HOURS = 1 / 60;
const MAX_HOURS = 24;

/** The turn of a request in the order: set when the request joins the queue, and changed only by its user. */
export interface Tag {
  class: RequestClass;
  /** Requests of a class are served in the order of their starts. In millionths of a GPU hour. */
  start: number;
  /** The start, and what the request costs: the same user's next request starts here at the earliest. */
  end: number;
  /** When it joined, on the boot clock, in ms. */
  joined: number;
  /** The user; null: a claim inside of a job, which is no matter of the machine's queue. */
  uid: number | null;
}

/** The requests of one class that a user was granted so far. */
export interface Turn {
  /** The largest start. */
  start: number;
  /** The largest end. */
  end: number;
}

interface Joining {
  class: RequestClass;
  uid: number | null;
  /** How many GPUs are asked for. MIG instances and shares count by their part. */
  size: number;
  /** How long the user's jobs last; 0: unknown. */
  hours: number;
}

/**
 * The tag of a request that joins, by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): users take turns, and the next
 * turn of a user comes later the more the one before it costs.
 * @param waiting the tags of all requests that wait @param granted by user, for this class @param now on the boot clock, in ms
 */
export function tagFor(
  { class: own, uid, size, hours }: Joining,
  waiting: readonly Tag[],
  granted: ReadonlyMap<number, Turn>,
  now: number,
  order: Order,
): Tag {
  const joined = Math.floor(now);
  const cost = costOf(size, hours);
  const peers = waiting.filter((tag) => tag.class === own && tag.uid !== null);
  let start = 0;
  if (uid !== null && (order === 'fifo' || own === 'urgent')) {
    start = peers.reduce((latest, tag) => Math.max(latest, tag.start), 0);
  } else if (uid !== null) {
    start = granted.get(uid)?.end ?? 0;
    for (const tag of peers) if (tag.uid === uid) start = Math.max(start, tag.end);
    for (const turn of granted.values()) start = Math.max(start, turn.start);
  }
  start = Math.min(start, MAX_UNITS);
  return { class: own, start, end: Math.min(start + cost, MAX_UNITS), joined, uid };
}

function costOf(size: number, hours: number): number {
  return Math.ceil(size * Math.min(Math.max(hours, MIN_HOURS), MAX_HOURS) * GPU_HOUR);
}

/** A user's turn after a request is granted, at what the request costs now: more may be known than when it joined. */
export function turnAfter({ start, end }: Turn, tag: Tag, size: number, hours: number): Turn {
  return {
    start: Math.max(start, tag.start),
    end: Math.min(Math.max(end, tag.start + costOf(size, hours)), MAX_UNITS),
  };
}

/** A difference of costs for which a user's waiting requests are given new tags. */
const MAX_RATIO = 1.25;

/** Whether the cost of a granted request differs from its tag so much that the user's other tags must be corrected. */
export function isMispriced({ start, end }: Tag, size: number, hours: number): boolean {
  const cost = costOf(size, hours);
  return end < MAX_UNITS && (end - start > MAX_RATIO * cost || cost > MAX_RATIO * (end - start));
}

/**
 * The tags of one user's waiting requests at what they cost now. None starts earlier than if it joined now.
 * @param requests in order @param end of the user's last granted request @param time the largest start granted to any user
 */
export function repriced(
  requests: readonly { tag: Tag; size: number; hours: number }[],
  end: number,
  time: number,
): Tag[] {
  let last = end;
  return requests.map(({ tag, size, hours }) => {
    const joiningNow = Math.max(time, last);
    const start = Math.min(joiningNow < tag.start ? joiningNow : Math.max(last, tag.start), MAX_UNITS);
    last = Math.min(start + costOf(size, hours), MAX_UNITS);
    return { ...tag, start, end: last };
  });
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
  const number = (at: number, digits: number) => Number(text.slice(at, at + digits));
  const [start, end, joined, uid] = [number(2, 16), number(19, 16), number(36, 16), number(53, 10)];
  if (start > MAX_UNITS || end > MAX_UNITS || joined > MAX_UNITS) return null;
  return {
    class: CLASSES[number(0, 1)] ?? 'normal',
    start,
    end: Math.max(start, end),
    joined,
    uid: uid >= NO_USER ? null : uid,
  };
}

/** A place in the queue, and the tag of its request; null: it is joining now, or its record is damaged. */
export interface Place {
  slot: number;
  tag: Tag | null;
}

/** The slots in the order in which requests are served. Requests without a tag come last. */
export function inOrder(places: readonly Place[]): number[] {
  return places.toSorted((a, b) => compare(a.tag, b.tag) || a.slot - b.slot).map(({ slot }) => slot);
}

/** Slots are in the order of joining, but for requests that were preempted and wait again. */
function compare(a: Tag | null, b: Tag | null): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  return CLASSES.indexOf(a.class) - CLASSES.indexOf(b.class) || a.start - b.start || a.joined - b.joined;
}
