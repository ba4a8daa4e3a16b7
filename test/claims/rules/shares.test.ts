import { expect, test } from 'vitest';
import { bestFit, keepRoom, type ShareSize, unitsOf } from '../../../lib/claims/rules/shares.ts';
import { Random } from '../../support/random.ts';

const GIB = 1024 ** 3;

test('amounts are rounded up to units of 256 MiB, percentages down; neither is nothing', () => {
  expect(unitsOf({ bytes: 20 * GIB }, 318)).toBe(80);
  expect(unitsOf({ bytes: 20 * GIB + 1 }, 318)).toBe(81);
  expect(unitsOf({ bytes: 1 }, 318)).toBe(1);
  expect(unitsOf({ percent: 25 }, 318)).toBe(79);
  expect(unitsOf({ percent: 0.1 }, 318)).toBe(1);
  expect(unitsOf({ percent: 100 }, 318)).toBe(318);
});

test('the GPUs with the least room that is enough are chosen', () => {
  const gpus = [30, 10, 20, 10].map((room, index) => ({ index, room }));
  expect(bestFit(gpus, 1)).toEqual([{ index: 1, room: 10 }]);
  expect(bestFit(gpus, 3)?.map(({ index }) => index)).toEqual([1, 3, 2]);
  expect(bestFit(gpus, 5)).toBeNull();
});

const gpu = (uuid: string, taken: number, capacity = 100) => ({ uuid, taken, capacity });
let slots = 0;
const request = (count: number, uuids: string, memory?: ShareSize, scope: string | null = null) => ({
  slot: slots++,
  count,
  uuids: [...uuids],
  scope,
  ...(memory === undefined ? {} : { memory }),
});
const kept = (...[gpus, ahead]: [ReturnType<typeof gpu>[], ReturnType<typeof request>[]]) =>
  Object.fromEntries([...keepRoom(gpus, null, ahead)].map(([uuid, { units }]) => [uuid, units]));

test('for a whole GPU, the one with the least taken is kept', () => {
  const gpus = [gpu('a', 50), gpu('b', 20), gpu('c', 70)];
  expect(kept(gpus, [request(1, 'abc')])).toEqual({ b: 100 });
  expect(kept(gpus, [request(1, 'ac')])).toEqual({ a: 100 });
  expect(kept(gpus, [request(2, 'abc'), request(1, 'abc')])).toEqual({ a: 100, b: 100, c: 100 });
  expect(kept(gpus, [request(1, 'abc', undefined, 'a job')])).toEqual({});
  const by = request(1, 'b');
  expect(keepRoom(gpus, null, [by, request(1, 'b')]).get('b')?.by).toBe(by);
});

test('for a share, as much is kept as it needs, on a GPU with room for the whole of it', () => {
  const quarter: ShareSize = { percent: 25 };
  expect(kept([gpu('a', 90), gpu('b', 20)], [request(1, 'ab', quarter)])).toEqual({ b: 25 });
  expect(kept([gpu('a', 50), gpu('b', 95)], [request(1, 'ab', quarter), request(1, 'ab', quarter)])).toEqual({
    a: 50,
  });
  // A GPU that is too small will never do.
  const large: ShareSize = { bytes: 30 * GIB };
  expect(kept([gpu('a', 0, 100), gpu('b', 250, 300)], [request(1, 'ab', large)])).toEqual({ b: 120 });
});

test('a request for whole GPUs is served while shares come and go: less and less is taken of the GPUs that are kept', () => {
  for (let seed = 0; seed < 200; seed++) {
    const random = new Random(seed);
    const gpus = Array.from({ length: 1 + random.integer(6) }, (_, i) => gpu('abcdef'[i] as string, 0));
    const shares: { uuid: string; units: number; ends: number }[] = [];
    const whole = request(1 + random.integer(gpus.length), 'abcdef');
    const fill = (at: number, ahead: (typeof whole)[]) => {
      for (let tries = 0; tries < 20; tries++) {
        const units = 1 + random.integer(60);
        const keeps = keepRoom(gpus, null, ahead);
        const fitting = gpus
          .map((each) => ({ each, room: each.capacity - each.taken - (keeps.get(each.uuid)?.units ?? 0) }))
          .filter(({ room }) => room >= units);
        const [chosen] = bestFit(fitting, 1) ?? [];
        if (chosen === undefined) continue;
        chosen.each.taken += units;
        shares.push({ uuid: chosen.each.uuid, units, ends: at + 1 + random.integer(50) });
      }
    };
    fill(0, []);
    const leastTaken = () => {
      const all = gpus.map(({ taken }) => taken).sort((a, b) => a - b);
      return all.slice(0, whole.count).reduce((sum, taken) => sum + taken, 0);
    };
    let least = leastTaken();
    let served = -1;
    for (let at = 1; served < 0 && at < 2_000; at++) {
      for (const { uuid, units } of shares.filter(({ ends }) => ends === at))
        (gpus.find((each) => each.uuid === uuid) as ReturnType<typeof gpu>).taken -= units;
      if (gpus.filter(({ taken }) => taken === 0).length >= whole.count) served = at;
      else fill(at, [whole]);
      expect(leastTaken(), `seed ${seed}`).toBeLessThanOrEqual(least);
      least = leastTaken();
    }
    expect(served, `seed ${seed}`).toBeGreaterThanOrEqual(0);
  }
});
