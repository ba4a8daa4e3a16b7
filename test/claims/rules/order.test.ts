import { describe, expect, test } from 'vitest';
import { mayBackfill } from '../../../lib/claims/rules/backfill.ts';
import {
  formatTag,
  inOrder,
  isMispriced,
  parseTag,
  repriced,
  type Tag,
  type Turn,
  tagFor,
  turnAfter,
} from '../../../lib/claims/rules/order.ts';
import { TIMEOUTS } from '../../../lib/platform/timeouts.ts';
import { FairModel, type ModelRequest, startsOf } from '../../support/fair-order.ts';
import { Random } from '../../support/random.ts';
import { makeLease } from '../../support/snapshots.ts';

const HOUR_MS = 3_600_000;
const UNITS = 1_000_000;
const USERS = ['alice', 'bob', 'carol', 'dave'];

/** The policy of lib/ with the model's rule of service. */
class PolicyQueue extends FairModel {
  readonly tags = new Map<string, Tag>();
  readonly turns = new Map<number, Turn>();

  override join(id: string, user: string, count: number, at: number, hours?: number) {
    const waiting = this.waiting.map((each) => this.tags.get(each.id) as Tag);
    const joining = {
      class: 'normal' as const,
      uid: USERS.indexOf(user),
      size: count,
      hours: this.expectedHours(user, hours ?? Number.POSITIVE_INFINITY),
    };
    this.tags.set(id, tagFor(joining, waiting, this.turns, at * HOUR_MS, this.order));
    return super.join(id, user, count, at, hours);
  }

  override grant({ id, user, count, hours }: ModelRequest): void {
    const uid = USERS.indexOf(user);
    const tag = this.tags.get(id) as Tag;
    const expected = this.expectedHours(user, hours);
    this.turns.set(uid, turnAfter(this.turns.get(uid) ?? { start: 0, end: 0 }, tag, count, expected));
    if (this.order === 'fifo' || !isMispriced(tag, count, expected)) return;
    const own = this.queue.filter((each) => each.user === user);
    const time = Math.max(...[...this.turns.values()].map(({ start }) => start));
    const requests = own.map((each) => ({
      tag: this.tags.get(each.id) as Tag,
      size: each.count,
      hours: this.expectedHours(user, each.hours),
    }));
    const tags = repriced(requests, this.turns.get(uid)?.end ?? 0, time);
    for (const [i, each] of own.entries()) this.tags.set(each.id, tags[i] as Tag);
  }

  override fitsBefore(ahead: readonly ModelRequest[], count: number, hours: number, at: number): boolean {
    const uuids = Array.from({ length: this.gpus }, (_, i) => `GPU-${i}`);
    const uses = [...this.running.values()].flatMap(({ count, began, hours }) =>
      Array(count).fill(began + hours),
    );
    const gpus = uuids.map((uuid, i) => {
      const use = uses[i];
      if (use === undefined) return { uuid, state: 'free' as const, lease: null };
      const until = Number.isFinite(use) ? { until: new Date(use * HOUR_MS).toISOString() } : {};
      return { uuid, state: 'leased' as const, lease: makeLease(until) };
    });
    const requests = ahead.map(({ turn, count, hours }) => ({
      slot: turn,
      count,
      uuids,
      scope: null,
      limitMs: Number.isFinite(hours) ? hours * HOUR_MS : null,
    }));
    return mayBackfill(
      uuids.slice(uses.length).slice(0, count),
      hours * HOUR_MS,
      requests,
      gpus,
      at * HOUR_MS,
    );
  }

  override get queue() {
    const places = this.waiting.map(({ id, turn }) => ({ slot: turn, tag: this.tags.get(id) as Tag }));
    return inOrder(places).map((slot) => {
      const found = this.waiting.find(({ turn }) => turn === slot);
      if (found === undefined) throw new Error(`slot ${slot} is nobody's`);
      return found;
    });
  }
}

/** Jobs of a user that arrive one right after the other. Each takes as long as its time limit. */
function jobs(user: string, number: number, count: number, at: number, hours: number) {
  return Array.from({ length: number }, (_, i) => ({
    id: `${user} ${i}`,
    user,
    count,
    at: at + i / 1e6,
    hours,
  }));
}

const lab = [...jobs('alice', 100, 1, 0, 2), ...jobs('bob', 1, 1, 5, 2), ...jobs('carol', 1, 8, 6.01, 2)];
const DAY = 24;
const week = [
  ...jobs('alice', 40, 1, 0, 12),
  ...jobs('bob', 6, 1, 20, 6),
  ...jobs('carol', 1, 8, DAY + 6.01, 8),
  ...jobs('dave', 1, 2, DAY + 10, 4),
];

// docs/fairness.md has the hundred jobs.
test.each([
  ['a hundred jobs', 'fair', lab, { alice: 26, bob: 6, carol: 8 }, 28],
  ['a hundred jobs', 'fifo', lab, { alice: 24, bob: 24, carol: 26 }, 28],
  ['a week', 'fair', week, { alice: 2 * DAY + 14, bob: DAY, carol: DAY + 18, dave: DAY + 12 }, 3 * DAY + 2],
  [
    'a week',
    'fifo',
    week,
    { alice: 2 * DAY, bob: 2 * DAY + 12, carol: 2 * DAY + 18, dave: 2 * DAY + 12 },
    3 * DAY + 2,
  ],
] as const)('the last starts of %s are right, with order: %s', (_, order, arrivals, lasts, end) => {
  for (const Queue of [FairModel, PolicyQueue]) {
    const starts = startsOf(new Queue(8, order, {}, TIMEOUTS.grace / HOUR_MS), arrivals);
    const last = (user: string) =>
      Math.round(
        Math.max(...arrivals.filter((job) => job.user === user).map(({ id }) => starts.get(id) ?? NaN)),
      );
    expect(Object.fromEntries(Object.keys(lasts).map((user) => [user, last(user)]))).toEqual(lasts);
    expect(Math.max(...arrivals.map(({ id, hours }) => (starts.get(id) ?? NaN) + hours))).toBeCloseTo(end, 2);
  }
});

test('the policy agrees with the model while requests come and go', () => {
  for (let seed = 1; seed <= (process.env.GPU_OWNER_SOAK ? 2_000 : 50); seed++) {
    const random = new Random(seed);
    const pick = (count: number) => random.integer(count);
    const order = pick(4) === 0 ? 'fifo' : 'fair';
    const grace = TIMEOUTS.grace / HOUR_MS;
    const queues = [new FairModel(8, order, {}, grace), new PolicyQueue(8, order, {}, grace)];
    let at = pick(100);
    for (let step = 0; step < 60; step++) {
      // No two at the same time: then either order would do.
      at += 0.01 + random.float(random.pick([0, 0.1, 3]));
      const act = pick(6);
      const [user, count, victim] = [USERS[pick(4)] as string, 1 + pick(8), random.float()];
      // No two end at the same time, either.
      const hours = (random.pick([1, 2, 4, 7, Number.POSITIVE_INFINITY]) ?? 1) + random.float(0.1);
      const states = queues.map((queue) => {
        const waiting = queue.queue.map(({ id }) => id);
        const waiter = waiting[Math.floor(victim * waiting.length)];
        const job = [...queue.running.keys()][Math.floor(victim * queue.running.size)];
        if (act < 3) queue.join(`${step}`, user, count, at, hours);
        else if (act === 3 && waiter !== undefined) queue.leave(waiter, at);
        else if (act === 4 && waiter !== undefined) queue.suspend(waiter, victim < 0.5, at);
        else if (job !== undefined) queue.finish(job, at);
        return { running: [...queue.running.keys()], waiting: queue.queue.map(({ id }) => id) };
      });
      expect(states[1], `seed ${seed}, step ${step}`).toEqual(states[0]);
    }
  }
});

test('with time limits, nobody starts later because others use GPUs that are kept', () => {
  class WithoutBackfill extends FairModel {
    override fitsBefore = () => false;
  }
  let earlier = 0;
  for (let seed = 1; seed <= 100; seed++) {
    const random = new Random(seed);
    const jobs = Array.from({ length: 30 }, (_, i) => ({
      id: `${i}`,
      user: random.pick(USERS) as string,
      count: 1 + random.integer(8),
      at: i / 1e6,
      hours: 1 + random.float(8),
    }));
    const plain = startsOf(new WithoutBackfill(8, 'fifo'), jobs);
    for (const [id, start] of startsOf(new PolicyQueue(8, 'fifo'), jobs)) {
      expect(start, `seed ${seed}, job ${id}`).toBeLessThanOrEqual((plain.get(id) ?? 0) + 1e-9);
      if (start < (plain.get(id) ?? 0) - 0.01) earlier++;
    }
  }
  expect(earlier).toBeGreaterThan(100);
});

test('no request is overtaken for ever by a returning user', () => {
  // Dave wants all GPUs. Three others come back as soon as they are served, for one GPU each.
  const model = new PolicyQueue(8);
  for (let i = 0; i < 8; i++) model.join(`first ${i}`, 'alice', 1, 0);
  model.join('dave', 'dave', 8, 0.1);
  let served = Number.NaN;
  for (let hour = 1, next = 0; hour < 100 && Number.isNaN(served); hour++) {
    for (const id of [...model.running.keys()]) {
      model.finish(id, hour);
      if (model.running.has('dave')) served = hour;
      model.join(`again ${next++}`, USERS[next % 3] as string, 1, hour);
    }
  }
  expect(served).toBeLessThan(10);
});

/** Serves one GPU for so many hours. @returns the hours that each user has had it */
function serveOneGPU(queue: FairModel, lengths: Record<string, number>, rejoining: string[], hours: number) {
  const had: Record<string, number> = {};
  let next = 0;
  for (let at = 0; at < hours; ) {
    const [[id, { user }] = ['', { user: '' }]] = queue.running;
    const length = lengths[user] ?? Number.NaN;
    at += length;
    had[user] = (had[user] ?? 0) + length;
    queue.finish(id, at);
    if (rejoining.includes(user)) queue.join(`again ${next++}`, user, 1, at);
  }
  return had;
}

describe.each([
  ['the model', FairModel],
  ['the policy', PolicyQueue],
])('by %s', (_, Queue) => {
  test('one who has submitted a backlog gets as much as those who submit again and again', () => {
    const queue = new Queue(1);
    for (let i = 0; i < 200; i++) queue.join(`backlog ${i}`, 'alice', 1, 0);
    for (const user of ['bob', 'carol', 'dave']) queue.join(user, user, 1, 0);
    const lengths = { alice: 0.2, bob: 0.2, carol: 0.2, dave: 0.2 };
    const had = serveOneGPU(queue, lengths, ['bob', 'carol', 'dave'], 80);
    for (const user of USERS) expect(had[user], user).toBeGreaterThan(19);
  });

  test('a request that is paused brings its user nothing', () => {
    const queue = new Queue(1);
    queue.join('running', 'alice', 1, 0);
    queue.join('paused', 'bob', 1, 0);
    queue.suspend('paused', true, 0);
    for (let i = 0; i < 200; i++) queue.join(`backlog ${i}`, 'alice', 1, 0);
    for (let i = 0; i < 3; i++) queue.join(`loop ${i}`, 'bob', 1, 0);
    const had = serveOneGPU(queue, { alice: 0.2, bob: 0.2 }, ['bob'], 30);
    expect(had.alice).toBeGreaterThan(14);
    expect(had.bob).toBeGreaterThan(14);
  });

  test('users with long and with short jobs get the GPU for as many hours, though they say nothing of it', () => {
    const queue = new Queue(1);
    for (let i = 0; i < 100; i++) queue.join(`long ${i}`, 'alice', 1, 0);
    for (let i = 0; i < 2; i++) {
      queue.join(`short ${i}`, 'bob', 1, 0);
      queue.join(`shorter ${i}`, 'carol', 1, 0);
    }
    const had = serveOneGPU(queue, { alice: 12, bob: 1, carol: 0.2 }, ['bob', 'carol'], 2_000);
    for (const user of ['alice', 'bob', 'carol']) {
      expect(had[user], user).toBeGreaterThan(2_000 * 0.27);
      expect(had[user], user).toBeLessThan(2_000 * 0.4);
    }
  });
});

test('a tag is the same when it is read again, and text that is none is no tag', () => {
  const tag: Tag = { class: 'urgent', start: 12 * UNITS, end: 13 * UNITS, joined: 4711, uid: 1000 };
  expect(parseTag(formatTag(tag))).toEqual(tag);
  expect(parseTag(formatTag({ ...tag, uid: null }))).toEqual({ ...tag, uid: null });
  for (const text of [
    '',
    '1',
    formatTag(tag).slice(1),
    `${formatTag(tag)} 1`,
    formatTag(tag).replaceAll('0', '9'),
  ])
    expect(parseTag(text)).toBeNull();
});

test('requests whose tags can’t be read come last', () => {
  const at = (slot: number, start: number | null) => ({
    slot,
    tag: start === null ? null : { class: 'normal' as const, start, end: start + 1, joined: 0, uid: 1 },
  });
  expect(inOrder([at(0, null), at(1, 5), at(2, null), at(3, 1), at(4, 5), at(5, 9)])).toEqual([
    3, 1, 4, 5, 0, 2,
  ]);
});
