// Requests for connected GPUs in the wait queue of random machines, against what has to hold whatever comes free when.
import { expect, test } from 'vitest';
import { freeTimes, type GPUUse, latestStarts } from '../../../lib/claims/rules/latest-start.ts';
import {
  findBlockers,
  type GpuRequest,
  mostUsable,
  reservedFor,
  withKeptSets,
} from '../../../lib/claims/rules/turn.ts';
import { Random } from '../../support/random.ts';

type Request = GpuRequest & { limitMs: number | null };

const HOUR = 3_600_000;
const NOW = 1_000 * HOUR;
const ALL = ['a', 'b', 'c', 'd'];
const PAIRS = [
  ['a', 'c'],
  ['b', 'd'],
];
const leasedFor = (uuid: string, hours: number): GPUUse => ({
  uuid,
  state: 'leased',
  lease: { until: Number.isFinite(hours) ? new Date(NOW + hours * HOUR).toISOString() : null } as never,
});
const free = (uuid: string): GPUUse => ({ uuid, state: 'free', lease: null });
const ask = (slot: number, count: number, sets?: string[][], uuids = sets?.flat() ?? ALL): Request => ({
  slot,
  count,
  uuids,
  ...(sets === undefined ? {} : { sets }),
  scope: null,
  limitMs: null,
});
const latestStart = (own: Request, ahead: Request[], gpus: GPUUse[], now = NOW) =>
  latestStarts([...ahead, own], gpus, now).at(-1) ?? 0;
const kept = (ahead: Request[], gpus: GPUUse[]) =>
  [...withKeptSets(ahead, null, freeTimes(gpus, NOW))].map(({ uuids }) => uuids.join(''));

test('a request for connected GPUs keeps the set that is free first, else the one that lacks the fewest', () => {
  const pair = ask(0, 2, PAIRS);
  const forever = Number.POSITIVE_INFINITY;
  const use = (...hours: number[]) =>
    ALL.map((uuid, i) => (hours[i] === 0 ? free(uuid) : leasedFor(uuid, hours[i] ?? 0)));
  expect(kept([pair], use(forever, forever, forever, forever))).toEqual(['ac']);
  expect(kept([pair], use(forever, forever, forever, 0))).toEqual(['bd']);
  expect(kept([pair], use(forever, 2, 0, 3))).toEqual(['bd']);
  expect(kept([pair], use(2, 4, 3, 0))).toEqual(['ac']);
  expect(kept([pair], [free('a'), { ...free('c'), state: 'busy' }, free('b'), leasedFor('d', 1)])).toEqual([
    'bd',
  ]);
  // Each keeps what those ahead leave.
  expect(kept([ask(0, 1, undefined, ['a']), pair], use(0, forever, forever, 0))).toEqual(['a', 'bd']);
  expect(kept([pair, pair], use(0, forever, forever, 0))).toEqual(['ac', 'bd']);
  expect(kept([{ ...pair, scope: 'job' }, pair], use(0, forever, forever, 0))).toEqual(['acbd', 'ac']);
});

test('who comes after a request that may start earlier, in another set, is told no time', () => {
  const gpus = [leasedFor('a', 2), leasedFor('b', 3), leasedFor('c', 2), leasedFor('d', 3)];
  const [pair] = [...withKeptSets([ask(0, 2, PAIRS)], null, freeTimes(gpus, NOW))] as [Request];
  expect(latestStart(pair, [], gpus)).toBeGreaterThanOrEqual(NOW + 2 * HOUR);
  expect(latestStart(pair, [], gpus)).toBeLessThan(NOW + 3 * HOUR);
  for (const uuids of [['a', 'c'], ['b', 'd'], ['d'], ALL])
    expect(latestStart(ask(1, 1, undefined, uuids), [pair], gpus)).toBe(Number.POSITIVE_INFINITY);
});

/** The largest sets of connected GPUs of a random machine, of two or more: tried one by one. */
function randomSets(random: Random, uuids: readonly string[], count: number): string[][] {
  const near = new Map(uuids.map((uuid) => [uuid, new Set<string>()]));
  for (const [i, a] of uuids.entries())
    for (const b of uuids.slice(i + 1))
      if (random.float() < 0.5) {
        near.get(a)?.add(b);
        near.get(b)?.add(a);
      }
  const subsets = Array.from({ length: 2 ** uuids.length }, (_, bits) =>
    uuids.filter((__, i) => (bits >> i) & 1),
  );
  const cliques = subsets.filter((set) => set.every((a) => set.every((b) => a === b || near.get(a)?.has(b))));
  return cliques.filter(
    (set) =>
      set.length >= count &&
      !cliques.some((other) => other.length > set.length && set.every((uuid) => other.includes(uuid))),
  );
}

const MAX_HOURS = 10;

test('on random machines, nobody who waits is forgotten, kept GPUs come free in time, and no wait is too long', () => {
  for (let seed = 1; seed <= (process.env.GPU_OWNER_SOAK ? 1_500 : 40); seed++) {
    const random = new Random(seed);
    const uuids = ALL.concat('e', 'f').slice(0, 2 + random.integer(5));
    /** When each GPU is given back, and when it is at the latest, as far as that is known; in hours. */
    const leases = new Map<string, { end: number; until: number }>();
    const lease = (uuid: string, at: number) => {
      const end = at + 1 + random.integer(MAX_HOURS);
      const until = random.float() < 0.5 ? end + random.integer(4) : Number.POSITIVE_INFINITY;
      leases.set(uuid, { end, until });
    };
    let waiting: (Request & { first: number; foretold: number })[] = [];
    let slot = 0;
    for (const uuid of uuids) if (random.float() < 0.7) lease(uuid, 0);
    for (let at = 0; at < 80; at++) {
      for (const [uuid, { end }] of leases) if (end <= at) leases.delete(uuid);
      // Newcomers never stop coming; most need one GPU.
      if (waiting.length < 6) {
        const count = random.float() < 0.3 ? Math.min(2 + random.integer(2), uuids.length) : 1;
        const sets = count > 1 ? randomSets(random, uuids, count) : [];
        const isChoice = sets.length > 1;
        const request = isChoice
          ? ask(slot, count, sets, [...new Set(sets.flat())])
          : ask(slot, 1, undefined, uuids);
        slot++;
        waiting.push({ ...request, first: Number.POSITIVE_INFINITY, foretold: Number.POSITIVE_INFINITY });
      }
      for (let again = true; again; ) {
        again = false;
        const gpus = uuids.map((uuid) => {
          const { until } = leases.get(uuid) ?? { until: 0 };
          return leases.has(uuid) ? leasedFor(uuid, until) : free(uuid);
        });
        const freeAt = freeTimes(gpus, NOW + at * HOUR);
        for (const [i, own] of waiting.entries()) {
          const ahead = waiting.slice(0, i);
          const open = uuids.filter((uuid) => !leases.has(uuid));
          const reserved = reservedFor(open, null, withKeptSets(ahead, null, freeAt));
          const usable = (uuid: string) => open.includes(uuid) && !reserved.has(uuid);
          const canStart = mostUsable(own, usable) >= own.count;
          // Who waits for others sleeps: then no GPU that comes free may be for it.
          if (findBlockers(own, ahead.toReversed()).length > 0) expect(canStart, `seed ${seed}`).toBe(false);
          if (i === 0 && !canStart) {
            own.first = Math.min(own.first, at);
            const [settled] = [...withKeptSets([own], null, freeAt)] as unknown as [Request];
            const start = latestStart(settled, [], gpus, NOW + at * HOUR);
            // What it was told once holds, and only ever gets better.
            expect(start, `seed ${seed}`).toBeLessThanOrEqual(own.foretold);
            own.foretold = start;
            expect(at - own.first, `seed ${seed}`).toBeLessThan((own.count + 1) * MAX_HOURS);
          }
          if (!canStart) continue;
          const all = own.sets ?? [own.uuids];
          const set = random.pick(all.filter((each) => each.filter(usable).length >= own.count));
          for (const uuid of set?.filter(usable).slice(0, own.count) ?? []) lease(uuid, at);
          waiting = waiting.filter((each) => each !== own);
          again = true;
          break;
        }
      }
      // An idle GPU is for somebody who waits for more.
      const idle = uuids.filter((uuid) => !leases.has(uuid));
      for (const uuid of idle) {
        const first = waiting.findIndex((each) => each.uuids.includes(uuid));
        expect(waiting[first]?.count ?? 2, `seed ${seed}`).toBeGreaterThan(1);
      }
    }
  }
});

test('a request waits for others only where these are in its way whichever sets they get', () => {
  expect(findBlockers(ask(9, 1), [ask(1, 2, PAIRS)])).toEqual([]);
  expect(findBlockers(ask(9, 3), [ask(1, 2, PAIRS)])).toMatchObject([{ slot: 1 }]);
  expect(findBlockers(ask(9, 2, PAIRS), [ask(1, 1, undefined, ['a', 'b'])])).toMatchObject([{ slot: 1 }]);
  expect(findBlockers(ask(9, 2, PAIRS), [ask(1, 1, undefined, ['a'])])).toEqual([]);
  expect(
    findBlockers(ask(9, 2, PAIRS), [ask(2, 1, undefined, ['d']), ask(1, 1, undefined, ['a'])]),
  ).toMatchObject([{ slot: 2 }, { slot: 1 }]);
});
