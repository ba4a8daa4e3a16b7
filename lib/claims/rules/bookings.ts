import { TIMEOUTS } from '../../platform/index.ts';
import type { RequestClass } from './order.ts';

/** GPUs that are kept for a user at a time. Times are in ms since 1970. */
export interface Booking {
  id: number;
  /** The user who has made it: the owner of its file. */
  maker: number;
  /** The user, and the group, for whom the GPUs are kept; null: no group. */
  uid: number;
  gid: number | null;
  uuids: readonly string[];
  from: number;
  until: number;
  /** When its file was last changed, as the kernel says. */
  madeAt: number;
}

/** Limits of a user's bookings. Infinity: none. */
export interface BookingLimit {
  /** GPUs at a time. */
  gpus: number;
  /** How far ahead a booking may end. */
  aheadMs: number;
}

/**
 * The valid bookings among all files: made by users who may book, within their limits, and not of GPUs
 * that were booked before. Past ones don't count.
 * @param limitOf the limits of a maker; null: may not book
 */
export function bookingsInForce<Each extends Booking>(
  bookings: readonly Each[],
  limitOf: (maker: number) => BookingLimit | null,
  now: number,
): Each[] {
  const ranked = bookings.flatMap((booking) => {
    const limit = limitOf(booking.maker);
    if (limit === null || booking.until <= now || booking.from >= booking.until) return [];
    if (booking.until > Math.max(now, booking.madeAt) + limit.aheadMs) return [];
    // A file that was written long before its time is no older than the first moment at which it may have been.
    return [{ booking, limit, rank: Math.max(booking.madeAt, booking.until - limit.aheadMs) }];
  });
  ranked.sort((a, b) => a.rank - b.rank || a.booking.id - b.booking.id);
  const inForce: Each[] = [];
  for (const { booking, limit } of ranked) {
    const beside = inForce.filter((other) => other.from < booking.until && booking.from < other.until);
    const isTaken = beside.some(({ uuids }) => uuids.some((uuid) => booking.uuids.includes(uuid)));
    const own = beside.filter(({ maker }) => maker === booking.maker);
    if (!isTaken && mostAtOnce(own, booking.from) + booking.uuids.length <= limit.gpus) inForce.push(booking);
  }
  return inForce;
}

/** How many GPUs these bookings have together at one moment, at most. @param from earlier moments don't matter */
function mostAtOnce(bookings: readonly Booking[], from: number): number {
  const sumAt = (time: number) =>
    bookings.reduce((sum, each) => sum + (each.from <= time && time < each.until ? each.uuids.length : 0), 0);
  return Math.max(0, ...[from, ...bookings.map((each) => Math.max(from, each.from))].map(sumAt));
}

/** A request, as far as bookings are concerned. */
export interface BookedRequest {
  uid: number;
  isMember: (gid: number) => boolean;
  class: RequestClass;
  /** How long it uses its GPUs at most, in ms; null: for ever. */
  limitMs: number | null;
}

/** Whether the GPUs of a booking are kept for this user, too. */
function isBookedFor(
  { uid, gid }: Pick<Booking, 'uid' | 'gid'>,
  request: Pick<BookedRequest, 'uid' | 'isMember'>,
): boolean {
  return uid === request.uid || (gid !== null && request.isMember(gid));
}

/**
 * The booking because of which a request can't use a GPU now; null: it can. Before a booking begins, others use its GPUs if they
 * will have given them back in time. Preemptible requests use them at any time, as they give way.
 * @param inForce see {@link bookingsInForce}
 */
export function bookingInTheWay<Each extends Booking>(
  uuid: string,
  request: BookedRequest,
  inForce: readonly Each[],
  now: number,
): Each | null {
  if (request.class === 'preemptible') return null;
  const end = now + (request.limitMs ?? Number.POSITIVE_INFINITY) + TIMEOUTS.grace;
  let first: Each | null = null;
  for (const booking of inForce) {
    if (!booking.uuids.includes(uuid) || booking.until <= now || end <= booking.from) continue;
    if (isBookedFor(booking, request)) continue;
    if (first === null || booking.from < first.from) first = booking;
  }
  return first;
}
