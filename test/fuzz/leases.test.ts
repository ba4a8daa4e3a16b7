import fc from 'fast-check';
import { expect } from 'vitest';
import {
  decodeRecord,
  encodeRecord,
  leaseInfo,
  nameGPUs,
  RECORD_SIZE,
  type RecordContents,
} from '../../lib/claims/locks/record.ts';
import { BOOKING_FILE, describeBooking } from '../../lib/claims/queue/booking-files.ts';
import { StallDetector } from '../../lib/claims/queue/stall-detector.ts';
import { latestStarts } from '../../lib/claims/rules/latest-start.ts';
import { findBlockers, type GpuRequest, reservedFor } from '../../lib/claims/rules/turn.ts';
import { readAs } from '../../lib/platform/schema.ts';
import { TIMEOUTS } from '../../lib/platform/timeouts.ts';
import { expectPrintable, fuzz, jsonValue, mutated, text } from './fuzz.ts';

const record = {
  user: 'alice',
  uid: 1000,
  pid: 4711,
  host: 'box',
  command: 'python train.py',
  since: '2025-11-20T10:42:00.000Z',
  until: 1764000000000,
  boot: 'b',
  generation: 1,
  pidNamespace: '4026531836',
  survivors: 2,
  ended: null,
  place: 1,
  count: 2,
  uuids: ['GPU-0', 'GPU-1'],
  scope: null,
};
const keys = Object.keys(record);

const records = fc.oneof(
  mutated(fc.constant(JSON.stringify(record)), keys),
  // Every member may be anything.
  fc
    .dictionary(fc.oneof(fc.constantFrom(...keys), text()), jsonValue)
    .map((members) => JSON.stringify({ ...record, ...members })),
  fc.jsonValue().map((value) => JSON.stringify(value)),
  text(keys),
);

fuzz(
  'what a lease file says is harmless to print, whatever it says',
  fc.tuple(records, fc.nat(8)),
  ([written, zeros]) => {
    const found = decodeRecord(Buffer.from(written + '\0'.repeat(zeros)));
    const info = leaseInfo(found);
    expectPrintable(Object.values(info).join(' '));
    expect(Array.from(info.user).length).toBeLessThanOrEqual(32);
    expect(Array.from(info.command ?? '').length).toBeLessThanOrEqual(200);
    expect(info.pid === null || (Number.isSafeInteger(info.pid) && info.pid > 0)).toBe(true);
    expect(info.uid === null || (Number.isSafeInteger(info.uid) && info.uid >= 0)).toBe(true);
    for (const time of [info.since ?? '0', info.until ?? '0']) expect(Date.parse(time)).not.toBeNaN();
  },
);

fuzz('the bytes of a lease file may be anything', fc.uint8Array({ maxLength: 300 }), (bytes) => {
  expectPrintable(Object.values(leaseInfo(decodeRecord(bytes))).join(' '));
});

const booking = {
  id: 3,
  uid: 1,
  gid: 2,
  group: 'staff',
  uuids: ['GPU-0'],
  from: 1e12,
  until: 2e12,
  repeats: [3e12],
  note: 'demo',
};

fuzz(
  'the file of a booking is harmless to print, whatever it says',
  fc.oneof(
    mutated(fc.constant(JSON.stringify(booking)), Object.keys(booking)),
    fc
      .dictionary(fc.constantFrom(...Object.keys(booking)), jsonValue)
      .map((members) => JSON.stringify({ ...booking, ...members })),
  ),
  (written) => {
    const found = readAs(BOOKING_FILE, written);
    if (found === null) return;
    expectPrintable(describeBooking({ ...found, user: 'alice' }));
    expect(new Date(found.until).toISOString()).toMatch(/^\d{4}-/);
  },
);

const gpus = fc.array(fc.record({ index: fc.nat(64), uuid: fc.string({ maxLength: 60 }), name: text() }), {
  maxLength: 80,
});

fuzz(
  'a record that names GPUs fills one block, and is read as it was written',
  fc.tuple(gpus, text()),
  ([all, user]) => {
    const mine: RecordContents = { ...record, user };
    const block = encodeRecord(nameGPUs(mine, all));
    expect(block.length).toBe(RECORD_SIZE);
    const read = decodeRecord(block);
    expect(read?.pid).toBe(record.pid);
    expect(read?.gpus).toEqual(all.slice(0, 4).length === all.length ? all : expect.any(Array));
  },
);

const uuids = fc.array(fc.constantFrom('a', 'b', 'c', 'd', 'e', '__proto__', ''), { maxLength: 8 });
const scope = fc.constantFrom(null, 'job', '');
const wishes: fc.Arbitrary<GpuRequest[]> = fc.array(
  fc.record({
    slot: fc.nat(50),
    count: fc.oneof(fc.integer({ min: 1, max: 6 }), fc.constant(Number.MAX_SAFE_INTEGER)),
    uuids,
    scope,
  }),
  { maxLength: 12 },
);

fuzz(
  'whose turn it is follows from the queue, whatever stands in it',
  fc.tuple(uuids, scope, wishes),
  ([own, within, ahead]) => {
    const reserved = reservedFor(own, within, ahead);
    for (const [uuid, wish] of reserved) {
      expect(own).toContain(uuid);
      expect(wish.uuids).toContain(uuid);
      expect(wish.scope).toBe(within);
    }
    const blockers = findBlockers({ count: 1, uuids: own, scope: within }, ahead.toReversed());
    for (const blocker of blockers) expect(ahead).toContain(blocker);
    // No waiter waits for others while a GPU is left to none of them.
    if (new Set(own).size > reserved.size) expect(blockers).toEqual([]);
    const detector = new StallDetector();
    detector.observe(ahead, new Set(own), 0);
    detector.observe(ahead, new Set(own), 10_000);
    for (const slot of detector.stalled(0, 10_000)) expect(ahead.map((wish) => wish.slot)).toContain(slot);
  },
);

const durations = fc.integer({ min: 1, max: 20 });

fuzz(
  'no request starts later than foretold, however early others end and whichever GPUs they choose',
  fc.record({
    held: fc.array(fc.record({ limit: durations, part: fc.double({ min: 0, max: 1, noNaN: true }) }), {
      minLength: 1,
      maxLength: 5,
    }),
    waiting: fc.array(
      fc.record({
        count: fc.integer({ min: 1, max: 5 }),
        limit: durations,
        part: fc.double({ min: 0, max: 1, noNaN: true }),
        choice: fc.nat(4),
      }),
      { minLength: 1, maxLength: 6 },
    ),
  }),
  ({ held, waiting }) => {
    const unit = TIMEOUTS.grace;
    const uuids = held.map((_, i) => `GPU-${i}`);
    const gpus = held.map(({ limit }, i) => ({
      uuid: uuids[i],
      state: 'leased',
      lease: { until: new Date(limit * unit).toISOString() },
    }));
    const requests = waiting.map(({ count, limit }, slot) => ({
      slot,
      count: Math.min(count, uuids.length),
      uuids,
      scope: null,
      limitMs: limit * unit,
    }));
    // As it comes: each starts when enough are free and everybody ahead has started, on GPUs that it chooses.
    const free = held.map(({ limit, part }) => (limit + 1) * unit * part);
    let earliest = 0;
    const starts = latestStarts(requests, gpus as never, 0);
    for (const [i, request] of requests.entries()) {
      const foretold = starts[i] as number;
      const start = Math.max(earliest, free.toSorted((a, b) => a - b)[request.count - 1] as number);
      expect(start).toBeLessThanOrEqual(foretold);
      earliest = start;
      const { limit, part, choice } = waiting[i] as (typeof waiting)[number];
      const able = free.flatMap((time, gpu) => (time <= start ? [gpu] : []));
      for (let taken = 0; taken < request.count; taken++) {
        const [gpu = 0] = able.splice(choice % able.length, 1);
        free[gpu] = start + (limit + 1) * unit * part;
      }
    }
  },
);
