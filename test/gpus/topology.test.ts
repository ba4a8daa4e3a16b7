import { describe, expect, test } from 'vitest';
import { select } from '../../lib/gpus/selection.ts';
import { bestConnected, connectedSets, connectionOf, type Topology } from '../../lib/gpus/topology.ts';
import { GIB, makeGPU } from '../support/snapshots.ts';

/** [level, NVLinks, by a switch] of each pair. */
type Pair = readonly [number, number, number];

/** GPUs with so much free memory, and what is between two of them. */
function machine(frees: readonly number[], between: (a: number, b: number) => Pair) {
  const gpus = frees.map((freeBytes, index) => ({
    ...makeGPU(index, { memory: { freeBytes } }),
    uuid: `GPU-${index}`,
  }));
  const links = gpus.flatMap((_, a) => gpus.slice(a + 1).flatMap((_, i) => [...between(a, a + 1 + i)]));
  const place = { cpus: [], nodes: [], active: 0, inactive: 0 };
  const topology: Topology = { uuids: gpus.map(({ uuid }) => uuid), places: gpus.map(() => place), links };
  const choose = (free: readonly number[], count: number, together = false) =>
    select(
      free.map((index) => gpus[index] as (typeof gpus)[number]),
      count,
      topology,
      together,
    )?.map(({ index }) => index);
  return { topology, choose };
}

const alike = (count: number) => Array.from({ length: count }, () => 80 * GIB);
const FAR: Pair = [50, 0, 0];
const bridges = machine(alike(4), (a, b) => (b - a === 2 ? [40, 4, 0] : [40, 0, 0]));
const twoSockets = machine(alike(8), (a, b) => (a < 4 === b < 4 ? [40, 0, 0] : FAR));
const switched = machine(alike(8), () => [50, 18, 1]);

describe('GPUs that are chosen together', () => {
  test('are those with NVLinks between them', () => {
    expect(bridges.choose([0, 1, 2, 3], 2)).toEqual([0, 2]);
    expect(bridges.choose([1, 2, 3], 2)).toEqual([1, 3]);
  });

  test('are any, where no two are better connected than others', () => {
    expect(bridges.choose([0, 1], 2)).toEqual([0, 1]);
    expect(switched.choose([0, 1, 2, 3, 4, 5, 6, 7], 4)).toEqual([0, 1, 2, 3]);
  });

  test('are on one socket', () => {
    expect(twoSockets.choose([0, 1, 2, 4, 5, 6, 7], 4)).toEqual([4, 5, 6, 7]);
    expect(twoSockets.choose([0, 3, 5, 6], 2)).toEqual([0, 3]);
  });

  test('leave pairs to others', () => {
    expect(bridges.choose([0, 1, 2], 1)).toEqual([1]);
    expect(bridges.choose([0, 1, 2, 3], 1)).toEqual([0]);
    expect(twoSockets.choose([0, 1, 2, 3, 5], 1)).toEqual([5]);
  });

  test('have as much memory as those without connections would have', () => {
    const small = machine([8 * GIB, 8 * GIB, 80 * GIB, 80 * GIB], (a, b) => (a + b === 1 ? [40, 4, 0] : FAR));
    expect(small.choose([0, 1, 2, 3], 1)).toEqual([2]);
    expect(small.choose([0, 1, 2, 3], 2)).toEqual([2, 3]);
    const similar = machine([76 * GIB, 80 * GIB, 80 * GIB], (a, b) =>
      a === 0 && b === 1 ? [40, 4, 0] : FAR,
    );
    expect(similar.choose([0, 1, 2], 2)).toEqual([0, 1]);
  });

  test('are chosen as without connections where these are unknown', () => {
    const unknown = machine(alike(4), () => [-1, -1, 0]);
    expect(unknown.choose([0, 1, 2, 3], 2)).toEqual([0, 1]);
    expect(select([makeGPU(1), makeGPU(2), makeGPU(0)], 1, unknown.topology)).toMatchObject([{ index: 0 }]);
  });
});

test('connections have their kinds and numbers of NVLinks, in both directions', () => {
  const pairs: Pair[] = [
    [0, 0, 0],
    [10, 0, 0],
    [20, 0, 0],
    [30, 0, 0],
    [40, -1, 0],
    [50, 4, 0],
    [50, 18, 1],
    [-1, 0, 0],
    [7, 0, 0],
    [50, 0, 0],
  ];
  let at = 0;
  const { topology } = machine(alike(5), () => pairs[at++] as Pair);
  const found = [0, 1, 2, 3].flatMap((a) =>
    [0, 1, 2, 3, 4].slice(a + 1).map((b) => connectionOf(topology, `GPU-${a}`, `GPU-${b}`)),
  );
  expect(found.map(({ kind, links }) => [kind, links])).toEqual([
    ['pcie-switch', null],
    ['pcie-switch', null],
    ['pcie-switches', null],
    ['host-bridge', null],
    ['numa', null],
    ['nvlink', 4],
    ['nvswitch', 18],
    [null, null],
    [null, null],
    ['system', null],
  ]);
  expect(connectionOf(topology, 'GPU-4', 'GPU-1')).toEqual({ kind: 'nvswitch', links: 18 });
  expect(connectionOf(topology, 'GPU-1', 'GPU-1')).toEqual({ kind: null, links: null });
  expect(connectionOf(topology, 'GPU-1', 'GPU-9')).toEqual({ kind: null, links: null });
});

/** Numbers from 0 to 1, the same for each seed: a linear congruential generator. */
function random(seed: number): () => number {
  let state = BigInt(seed);
  return () => {
    state = (state * 1_103_515_245n + 12_345n) % 2n ** 31n;
    return Number(state >> 8n) / 2 ** 23;
  };
}

const tableOf = (total: number, worth: (a: number, b: number) => number) =>
  Float64Array.from({ length: total ** 2 }, (_, at) => {
    const [a, b] = [Math.floor(at / total), at % total];
    return a === b ? 0 : worth(a, b);
  });

/** All sets of so many of the numbers below `total`, in the order of these. */
function sets(total: number, count: number): number[][] {
  return Array.from({ length: 2 ** total }, (_, bits) => bits)
    .map((bits) => Array.from({ length: total }, (_, i) => i).filter((i) => (bits >> i) & 1))
    .filter((set) => set.length === count)
    .sort((a, b) => a.map((each, i) => each - (b[i] ?? 0)).find((difference) => difference !== 0) ?? 0);
}

/** The sum of what is between all pairs of a set. */
const within = (set: readonly number[], worth: (a: number, b: number) => number) =>
  set.flatMap((a) => set.filter((b) => b > a).map((b) => worth(a, b))).reduce((sum, each) => sum + each, 0);

test('on a thousand random machines, the best set is chosen, then the one that leaves most, then the first', () => {
  for (let seed = 1; seed <= 1000; seed++) {
    const draw = random(seed);
    const total = 2 + Math.floor(draw() * 8);
    const count = 1 + Math.floor(draw() * total);
    const values = [0, 10, 20, 50, 100, 400];
    const kinds = 1 + Math.floor(draw() * values.length);
    const table = Array.from({ length: total * total }, () => values[Math.floor(draw() * kinds)] ?? 0);
    const worth = (a: number, b: number) => table[Math.min(a, b) * total + Math.max(a, b)] ?? 0;
    const all = Array.from({ length: total }, (_, i) => i);
    const scored = sets(total, count).map((set) => ({
      set,
      inner: within(set, worth),
      left: within(
        all.filter((i) => !set.includes(i)),
        worth,
      ),
    }));
    const inner = Math.max(...scored.map((each) => each.inner));
    const best = scored.filter((each) => each.inner === inner);
    const left = Math.max(...best.map((each) => each.left));
    expect(bestConnected(total, count, tableOf(total, worth)), `seed ${seed}`).toEqual(
      best.find((each) => each.left === left)?.set,
    );
  }
});

/** The connections that random machines have: NVLink, one PCIe switch, and others. */
const PAIRS: Pair[] = [
  [40, 4, 0],
  [0, 0, 0],
  [40, 0, 0],
  [-1, -1, 0],
];
const isTogether = (pair: Pair | undefined) => pair === PAIRS[0] || pair === PAIRS[1];

test('on a thousand random machines, all sets of connected GPUs are found, and the best of those that are free is chosen', () => {
  for (let seed = 1; seed <= 1000; seed++) {
    const draw = random(seed);
    const total = 2 + Math.floor(draw() * 7);
    const count = 2 + Math.floor(draw() * 3);
    const kinds = 1 + Math.floor(draw() * PAIRS.length);
    const pairs = Array.from({ length: total * total }, () => PAIRS[Math.floor(draw() * kinds)] as Pair);
    const between = (a: number, b: number) => pairs[Math.min(a, b) * total + Math.max(a, b)] as Pair;
    const { topology, choose } = machine(alike(total), between);
    const all = Array.from({ length: total }, (_, i) => i);
    const connected = Array.from({ length: 2 ** total }, (_, bits) => all.filter((i) => (bits >> i) & 1))
      .filter(({ length }) => length > 0)
      .filter((set) => set.every((a) => set.every((b) => a === b || isTogether(between(a, b)))));
    const largest = connected.filter(
      (set) =>
        set.length >= count &&
        !connected.some((other) => other.length > set.length && set.every((i) => other.includes(i))),
    );
    const found = connectedSets(topology, topology.uuids, count).map((set) => set.join());
    const expected = largest.map((set) => set.map((i) => `GPU-${i}`).join());
    expect(found.toSorted(), `seed ${seed}`).toEqual(expected.toSorted().slice(0, found.length));
    expect(found.length).toBe(Math.min(expected.length, 32));
    const worth = (a: number, b: number) =>
      between(a, b)[1] > 0 ? 400 : ([50, 20, 0][[0, 40, -1].indexOf(between(a, b)[0])] ?? 0);
    const scored = connected
      .filter((set) => set.length === count)
      .map((set) => ({
        set,
        inner: within(set, worth),
        left: within(
          all.filter((i) => !set.includes(i)),
          worth,
        ),
      }));
    const inner = Math.max(...scored.map((each) => each.inner));
    const left = Math.max(...scored.filter((each) => each.inner === inner).map((each) => each.left));
    const chosen = choose(all, count, true);
    if (scored.length === 0) expect(chosen, `seed ${seed}`).toBeUndefined();
    else
      expect(
        scored.find(({ set }) => set.join() === chosen?.join()),
        `seed ${seed}`,
      ).toMatchObject({
        inner,
        left,
      });
  }
});

test('GPUs that have to be connected may have less memory than others', () => {
  const small = machine([8 * GIB, 8 * GIB, 80 * GIB, 80 * GIB], (a, b) => (a + b === 1 ? [40, 4, 0] : FAR));
  expect(small.choose([0, 1, 2, 3], 2, true)).toEqual([0, 1]);
  expect(small.choose([0, 2, 3], 2, true)).toBeUndefined();
  expect(switched.choose([1, 4, 6], 3, true)).toEqual([1, 4, 6]);
});
