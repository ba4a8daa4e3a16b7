import { expect, test } from 'vitest';
import {
  type Booking,
  type BookingLimit,
  bookingInTheWay,
  bookingsInForce,
} from '../../../lib/claims/rules/bookings.ts';
import type { RequestClass } from '../../../lib/claims/rules/order.ts';
import { TIMEOUTS } from '../../../lib/platform/timeouts.ts';
import { Random } from '../../support/random.ts';

const HOUR = 3_600_000;
const START = Date.parse('2026-01-01T00:00:00Z');
const at = (hour: number) => START + hour * HOUR;
const ROOT = 0;
const ALICE = 1;
const BOB = 2;
const MALLORY = 3;
const NONE = Number.POSITIVE_INFINITY;
const LIMITS: Record<number, BookingLimit> = {
  [ROOT]: { gpus: NONE, aheadMs: NONE },
  [ALICE]: { gpus: 2, aheadMs: 24 * HOUR },
  [BOB]: { gpus: 3, aheadMs: 12 * HOUR },
};
const limitOf = (uid: number) => LIMITS[uid] ?? null;

/** Alice's booking of GPU a, made at hour 0, from hour 2 to hour 4. */
function booking(given: Partial<Booking> = {}): Booking {
  return {
    id: 1,
    maker: ALICE,
    uid: given.maker ?? ALICE,
    gid: null,
    uuids: ['a'],
    from: at(2),
    until: at(4),
    madeAt: at(0),
    ...given,
  };
}
const inForce = (bookings: Booking[], hour = 0) =>
  bookingsInForce(bookings, limitOf, at(hour)).map(({ id }) => id);

/** A request of a user that begins now. @param hours how long it runs, the time that its end may take included */
function request(
  uid: number,
  hours: number | null = null,
  kind: RequestClass = 'normal',
  gids: number[] = [],
) {
  const limitMs = hours === null ? null : hours * HOUR - TIMEOUTS.grace;
  return { uid, class: kind, limitMs, isMember: (gid: number) => gids.includes(gid) };
}
const inTheWay = (asking: ReturnType<typeof request>, bookings: Booking[], hour = 0) =>
  bookingInTheWay('a', asking, bookings, at(hour))?.id ?? null;

test.each([
  ['of a user who may book', {}, [1]],
  ['of a user who may not', { maker: MALLORY }, []],
  ['that is over', { from: at(-3), until: at(0) }, []],
  ['that ends before it begins', { from: at(4), until: at(2) }, []],
  ['that ends too far ahead', { from: at(20), until: at(25) }, []],
  ['of root, however far ahead', { maker: ROOT, from: at(2_000), until: at(2_001) }, [1]],
  ['of more GPUs than the user may book', { uuids: ['a', 'b', 'c'] }, []],
  ['that was legal before the clock was set back', { until: at(24), madeAt: at(0.5) }, [1]],
])('a booking %s', (_, given, expected) => {
  expect(inForce([booking(given)])).toEqual(expected);
});

test('the booking that was made first counts, also if its file was written long before it was legal', () => {
  const first = booking({ id: 2, madeAt: at(-2) });
  const second = booking({ id: 1, maker: BOB, uid: BOB, from: at(3), until: at(5), madeAt: at(-1) });
  expect(inForce([second, first])).toEqual([2]);
  // Bob's ends in hour 12, so it could not be made before hour 0.
  const early = booking({ id: 3, maker: BOB, uid: BOB, until: at(12), madeAt: at(-100) });
  expect(inForce([early, first])).toEqual([2]);
  expect(inForce([early, booking({ id: 4, madeAt: at(0.5) })])).toEqual([3]);
});

test('GPUs of a user count together only where the bookings overlap', () => {
  const of = (id: number, uuid: string, from: number, until: number) =>
    booking({ id, uuids: [uuid], from: at(from), until: at(until), madeAt: at(0) + id });
  expect(inForce([of(1, 'a', 1, 3), of(2, 'b', 2, 5), of(3, 'c', 4, 6)])).toEqual([1, 2, 3]);
  expect(inForce([of(1, 'a', 1, 3), of(2, 'b', 2, 5), of(3, 'c', 2, 6)])).toEqual([1, 2]);
  expect(inForce([of(1, 'a', 1, 3), of(2, 'b', 4, 5), of(3, 'c', 2, 6)])).toEqual([1, 2, 3]);
});

test('a booking is in the way of others’ requests that could run on into it, and that alone', () => {
  const booked = [booking()];
  expect(inTheWay(request(BOB), booked)).toBe(1);
  expect(inTheWay(request(BOB, 2), booked)).toBeNull();
  expect(inTheWay(request(BOB, 2.01), booked)).toBe(1);
  expect(inTheWay(request(BOB, 1), booked, 3)).toBe(1);
  expect(inTheWay(request(BOB), booked, 4)).toBeNull();
  expect(inTheWay(request(BOB, null, 'urgent'), booked)).toBe(1);
  expect(inTheWay(request(BOB, null, 'preemptible'), booked, 3)).toBeNull();
  expect(inTheWay(request(ALICE), booked)).toBeNull();
  expect(inTheWay(request(ROOT), booked)).toBe(1);
  expect(bookingInTheWay('b', request(BOB), booked, at(3))).toBeNull();
  const ofGroup = [booking({ gid: 7 })];
  expect(inTheWay(request(BOB, null, 'normal', [7]), ofGroup)).toBeNull();
  expect(inTheWay(request(BOB, null, 'normal', [8]), ofGroup)).toBe(1);
});

test('the first of several bookings is named', () => {
  const bookings = [booking({ id: 1, from: at(6), until: at(8) }), booking({ id: 2 })];
  expect(inTheWay(request(BOB), bookings)).toBe(2);
  expect(inTheWay(request(BOB), bookings, 5)).toBe(1);
});

/** A calendar with a field per GPU and hour, filled in the order in which bookings could be made. */
function calendarOf(bookings: readonly Booking[], now: number): Map<string, Booking> {
  const calendar = new Map<string, Booking>();
  const hoursOf = ({ from, until }: Booking) => {
    const hours: number[] = [];
    for (let hour = (from - START) / HOUR; hour < (until - START) / HOUR; hour++) hours.push(hour);
    return hours;
  };
  const begins = (each: Booking) => {
    const ahead = limitOf(each.maker)?.aheadMs ?? 0;
    return ahead === NONE ? each.madeAt : Math.max(each.madeAt, each.until - ahead);
  };
  const inOrder = bookings.toSorted((a, b) => begins(a) - begins(b) || a.id - b.id);
  for (const each of inOrder) {
    const limit = limitOf(each.maker);
    const hours = hoursOf(each);
    if (
      limit === null ||
      hours.length === 0 ||
      each.until <= now ||
      begins(each) > Math.max(now, each.madeAt)
    )
      continue;
    const isFree = hours.every((hour) => each.uuids.every((uuid) => !calendar.has(`${uuid} ${hour}`)));
    const most = Math.max(
      ...hours.map(
        (hour) => [...'abcd'].filter((uuid) => calendar.get(`${uuid} ${hour}`)?.maker === each.maker).length,
      ),
    );
    if (!isFree || most + each.uuids.length > limit.gpus) continue;
    for (const hour of hours) for (const uuid of each.uuids) calendar.set(`${uuid} ${hour}`, each);
  }
  return calendar;
}

test('bookings of several users, some of them forged, count as a calendar has them', () => {
  const random = new Random(11);
  let counted = 0;
  for (let round = 0; round < 400; round++) {
    let files: Booking[] = [];
    for (let id = 1; id <= 12; id++) {
      const maker = random.integer(4);
      const from = random.integer(30) - 4;
      files.push({
        id,
        maker,
        uid: maker,
        gid: random.integer(3) === 0 ? 7 : null,
        uuids: [...'abcd'].filter(() => random.integer(3) === 0).concat('abcd'[random.integer(4)] ?? 'a'),
        from: at(from),
        until: at(from + random.integer(6)),
        madeAt: at(random.integer(8) - 6),
      });
      files = files.map((each) => ({ ...each, uuids: [...new Set(each.uuids)] }));
    }
    if (random.integer(2) === 0) files = files.filter(({ id }) => id % 3 !== 0); // cancelled
    const hour = random.integer(20);
    const now = at(hour);
    const calendar = calendarOf(files, now);
    const counting = bookingsInForce(files, limitOf, now);
    counted += counting.length;
    expect(new Set(counting)).toEqual(new Set(calendar.values()));
    for (let i = 0; i < 10; i++) {
      const uid = random.integer(4);
      const hours = random.pick([null, 1, 2, 5, 9]) ?? null;
      const gids = random.integer(2) === 0 ? [7] : [];
      const uuid = 'abcd'[random.integer(4)] as string;
      const fields = Array.from({ length: Math.min(hours ?? 100, 100) }, (_, n) =>
        calendar.get(`${uuid} ${hour + n}`),
      );
      const others = fields.filter(
        (field) => field !== undefined && field.uid !== uid && !(field.gid === 7 && gids.length > 0),
      );
      const found = bookingInTheWay(uuid, request(uid, hours, 'normal', gids), counting, now);
      expect(found).toBe(others[0] ?? null);
    }
  }
  expect(counted).toBeGreaterThan(400);
});
