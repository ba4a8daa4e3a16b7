// Bookings: GPUs that are kept for a user at a time. Each is a file in the lock directory, and the file's owner has made it. Every claim judges
// them again under the decision lock, so a file that its owner was not allowed to make means nothing.
import { type BookingRules, loadConfiguration } from '../../config/index.ts';
import type { GPU, Verdict } from '../../gpus/index.ts';
import {
  formatSince,
  groupsOf,
  isNamedIn,
  isRoot,
  MAX_TIME,
  machineUid,
  now,
  readBlock,
  schema,
  userName,
} from '../../platform/index.ts';
import type { BookingInfo } from '../../shapes/index.ts';
import type { LockDirectory } from '../locks/index.ts';
import {
  type BookedRequest,
  type Booking,
  type BookingLimit,
  bookingInTheWay,
  bookingsInForce,
  type RequestClass,
} from '../rules/index.ts';

/**
 * Upper bound on the numbers of bookings: any user can create files with such names, and each claim opens all of them. A booking that
 * was made has such a number, so no other file hides it.
 */
export const MAX_BOOKINGS = 1_024;
const isBookingName = (name: string) => Number(/^booking-([1-9]\d{0,3})$/.exec(name)?.[1]) <= MAX_BOOKINGS;
const MAX_BYTES = 16 * 1024;
export const MAX_NOTE_LENGTH = 200;
/** How often a booking is repeated at most. */
export const MAX_REPEATS = 100;

/** A booking as its file has it. */
export interface StoredBooking extends Booking {
  user: string;
  /** For people. */
  group: string | null;
  note: string | null;
  /** The directory of the file. */
  path: string;
}

const TIME = schema.whole(MAX_TIME);

export const BOOKING_FILE = schema.jsonOf(
  schema.record({
    id: schema.whole(),
    uid: schema.nullable(schema.whole(2 ** 32 - 1)),
    gid: schema.nullable(schema.whole(2 ** 32 - 1)),
    group: schema.nullable(schema.shownText(64)),
    uuids: schema.listOf(schema.matching(/^[A-Za-z0-9-]{1,96}$/), 1024),
    from: TIME,
    until: TIME,
    repeats: schema.or(schema.listOf(TIME, MAX_REPEATS), []),
    note: schema.nullable(schema.shownText(MAX_NOTE_LENGTH)),
  }),
);

export const bookingName = (id: number) => `booking-${id}`;

/** The bookings that files say, each of their repeats apart, whether they count or not. @param isMaker whether those of this user are read */
export function readBookingFiles(
  directory: LockDirectory | null,
  isMaker: (uid: number) => boolean = () => true,
): StoredBooking[] {
  if (directory === null) return [];
  const found: StoredBooking[] = [];
  for (const path of directory.all) {
    const names = directory.namesIn(path).filter(isBookingName);
    for (const name of names) {
      for (const { descriptor, status } of directory.filesOfOwners(name, [path])) {
        const owner = machineUid(status.uid);
        const maker = isRoot(owner) ? 0 : owner;
        if (!isMaker(maker)) continue;
        const stored = schema.readAs(BOOKING_FILE, readBlock(descriptor, MAX_BYTES).toString());
        // Another name of a file (a hard link) is no second booking.
        if (stored === null || bookingName(stored.id) !== name || stored.uuids.length === 0) continue;
        // Only root books for others.
        const uid = maker === 0 ? (stored.uid ?? 0) : maker;
        const madeAt = status.changedAt;
        const { repeats, ...first } = stored;
        const booking = { ...first, uid, maker, madeAt, user: userName(uid), path };
        found.push(...timesOf(stored).map((time) => ({ ...booking, ...time })));
      }
    }
  }
  return found;
}

/** When a booking holds: at first, and each time it is repeated. */
export function timesOf({
  from,
  until,
  repeats,
}: Record<'from' | 'until', number> & { repeats: readonly number[] }) {
  return [from, ...repeats].map((begin) => ({ from: begin, until: begin + until - from }));
}

/** How long a process reuses the configuration it has read, in ms. */
const RULES_MAX_AGE_MS = 60_000;
let known: { at: number; rules: BookingRules | undefined } | null = null;

/** The users who may book; undefined: only root. @throws ERR_CONFIGURATION the first time */
export function bookingRules(): BookingRules | undefined {
  if (known !== null && now() - known.at < RULES_MAX_AGE_MS) return known.rules;
  try {
    known = { at: now(), rules: loadConfiguration().bookings };
  } catch (error) {
    if (known === null) throw error;
    known.at = now();
  }
  return known.rules;
}

/** The limits of a user's bookings; null: the user may not book. */
export function bookingLimit(uid: number): BookingLimit | null {
  if (uid === 0) return { gpus: Number.POSITIVE_INFINITY, aheadMs: Number.POSITIVE_INFINITY };
  const rules = bookingRules();
  if (rules === undefined) return null;
  return isNamedIn(uid, rules) ? rules : null;
}

/** The bookings that count. */
export function readBookings(directory: LockDirectory | null, at = Date.now()): StoredBooking[] {
  const limits = new Map<number, BookingLimit | null>();
  const limitOf = (uid: number) => {
    if (!limits.has(uid)) limits.set(uid, bookingLimit(uid));
    return limits.get(uid) ?? null;
  };
  const files = readBookingFiles(directory, (uid) => limitOf(uid) !== null);
  return files.length === 0 ? [] : bookingsInForce(files, limitOf, at);
}

/** The bookings, read when they are first asked for. */
export function bookingsWhenAsked(directory: LockDirectory | null): () => readonly StoredBooking[] {
  let bookings: readonly StoredBooking[] | undefined;
  return () => (bookings ??= readBookings(directory));
}

/** A user's request, for bookings. */
export function bookedRequest(uid: number, own: RequestClass, limitMs: number | null): BookedRequest {
  return { uid, isMember: (gid) => groupsOf(uid).has(gid), class: own, limitMs };
}

interface Judged {
  gpu: GPU;
  verdict: Verdict;
}

/** Takes away the GPUs that are booked by others, so that this process's user can't have them now. */
export function applyBookings<Candidate extends Judged>(
  candidates: Candidate[],
  { class: own = 'normal', limitMs }: { class?: RequestClass; limitMs?: number | undefined },
  directory: LockDirectory | null,
): Candidate[] {
  const at = Date.now();
  const bookings = readBookings(directory, at);
  if (bookings.length === 0) return candidates;
  const request = bookedRequest(machineUid(), own, limitMs ?? null);
  return candidates.map((candidate) => {
    const { gpu, verdict } = candidate;
    const booking = bookingOf(gpu, (uuid) => bookingInTheWay(uuid, request, bookings, at));
    if (booking === null) return candidate;
    const { state } = verdict;
    const bookedUntil = booking.until;
    if (state !== 'free') return { ...candidate, verdict: { ...verdict, bookedUntil, transient: false } };
    const reason = `free, but ${describeBooking(booking, at)}`;
    return { ...candidate, verdict: { ...verdict, state: 'leased', reason, transient: false, bookedUntil } };
  });
}

/** The time until the first of the bookings ends that are in the way, in ms; Infinity: there is none. */
export function untilBookingsEnd(candidates: readonly Pick<Judged, 'verdict'>[]): number {
  const ends = candidates.map(({ verdict }) => verdict.bookedUntil ?? Number.POSITIVE_INFINITY);
  return Math.max(0, Math.min(...ends) - Date.now());
}

/** The answer for a GPU, or for the GPU that it is an instance of. */
export function bookingOf<Each>(
  { uuid, parent = null }: { uuid: string; parent?: string | null },
  find: (uuid: string) => Each | null,
): Each | null {
  return find(uuid) ?? (parent === null ? null : find(parent));
}

/** 'booked by alice from 09:00 tomorrow until 17:00 tomorrow (booking 3: demo)' */
export function describeBooking(
  booking: Omit<BookingInfo, 'from' | 'until'> & Record<'from' | 'until', number | string>,
  at = Date.now(),
): string {
  const { id, user, group, from, until, note } = booking;
  const begin = new Date(from).getTime() > at ? `from ${formatSince(from, at)} ` : '';
  const whom = group === null ? user : `${user} and the group ${group}`;
  return `booked for ${whom} ${begin}until ${formatSince(until, at)} (booking ${id}${note === null ? '' : `: ${note}`})`;
}

/** The present booking of a GPU, else the next one; null: none. */
export function bookingInfo(gpu: GPU, bookings: readonly StoredBooking[]): BookingInfo | null {
  const first = firstBooking(gpu, bookings);
  if (first === null) return null;
  const { id, user, group, from, until, note } = first;
  const iso = (time: number) => new Date(time).toISOString();
  return { id, user, group, from: iso(from), until: iso(until), note };
}

function firstBooking(gpu: GPU, bookings: readonly StoredBooking[]): StoredBooking | null {
  return bookingOf(gpu, (uuid) => {
    const own = bookings.filter(({ uuids }) => uuids.includes(uuid));
    return own.sort((a, b) => a.from - b.from)[0] ?? null;
  });
}
