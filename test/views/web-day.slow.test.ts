// The last 24 hours as `web` remembers them, and many days of it in simulated time.
import type { ServerResponse } from 'node:http';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { Host } from '../../lib/config/index.ts';
import type { ShownGPU } from '../../lib/shapes/index.ts';
import { FleetView } from '../../lib/views/fleet-view.ts';
import type { MachineSnapshot, MachineView } from '../../lib/views/machine-view.ts';
import { Day, SLOT_MS, SLOTS } from '../../lib/views/web/day.ts';
import { Feed } from '../../lib/views/web/feed.ts';

const DAY_MS = SLOTS * SLOT_MS;
const DAYS = 30;

function gpu(index: number, changes: object = {}): ShownGPU {
  const memory = { totalBytes: 100, usedBytes: 40, freeBytes: 60, reservedBytes: 0 };
  const base = { index, instance: null, uuid: `GPU-${index}`, name: 'Test', utilizationPercent: 50, memory };
  return { ...base, lease: null, shares: [], state: 'free', ...changes } as unknown as ShownGPU;
}

describe('a day', () => {
  test('has the mean of each five minutes, and null where nobody looked', () => {
    const day = new Day();
    expect(day.read(0)).toEqual([]);
    day.add([gpu(0, { utilizationPercent: 0 }), gpu(1)], 0);
    day.add([gpu(0, { utilizationPercent: 100, lease: { user: 'a' } })], 60_000);
    day.add([gpu(0, { utilizationPercent: null })], 2 * SLOT_MS);
    const [first, second] = day.read(2 * SLOT_MS);
    expect(first?.utilizationPercent.slice(-4)).toEqual([null, 50, null, null]);
    expect(first?.memoryPercent.slice(-3)).toEqual([40, null, 40]);
    expect(first?.leasedPercent.slice(-3)).toEqual([50, null, 0]);
    expect(second?.utilizationPercent.slice(-3)).toEqual([50, null, null]);
  });

  test('knows to the second how long it has looked, and how long a GPU was leased meanwhile', () => {
    vi.useFakeTimers({ toFake: ['Date'], now: Date.parse('2025-11-20T12:00:00Z') });
    try {
      const day = new Day();
      const lease = { user: 'a', since: '2025-11-20T12:00:07Z' };
      for (let second = 0; second <= 60; second++) {
        day.add([gpu(0, second < 10 ? {} : { lease }), gpu(1)], second * 1_000);
        vi.advanceTimersByTime(1_000);
      }
      const spans = () =>
        day.read(60_000).map(({ spanSeconds, leasedSeconds }) => [spanSeconds, leasedSeconds]);
      // A look each second: nothing of what was before the last one without the lease.
      expect(spans()).toEqual([
        [60, 51],
        [60, 0],
      ]);
      day.add([gpu(0, { lease })], DAY_MS);
      expect(day.read(DAY_MS)[0]).toMatchObject({ spanSeconds: 86_400, leasedSeconds: 0 });
    } finally {
      vi.useRealTimers();
    }
  });

  test('forgets what is older, and GPUs that are gone', () => {
    const day = new Day();
    day.add([gpu(0), gpu(1)], 0);
    day.add([gpu(1)], DAY_MS - SLOT_MS);
    expect(day.read(DAY_MS - SLOT_MS)[0]?.utilizationPercent[0]).toBe(50);
    day.add([gpu(1)], DAY_MS);
    const [left, ...others] = day.read(DAY_MS);
    expect(others).toEqual([]);
    expect(left).toMatchObject({ index: 1 });
    expect(left?.utilizationPercent.filter((each) => each !== null)).toEqual([50, 50]);
    // Long silence, and a clock that stands still.
    day.add([gpu(1)], 5 * DAY_MS);
    expect(day.read(5 * DAY_MS)[0]?.utilizationPercent.filter((each) => each !== null)).toEqual([50]);
    day.add([gpu(1)], 4 * DAY_MS);
    expect(day.read(5 * DAY_MS)[0]?.utilizationPercent.filter((each) => each !== null)).toEqual([50]);
  });

  test('keeps at most 256 GPUs, those that were seen last', () => {
    const day = new Day();
    for (let i = 0; i < 1_000; i++) day.add([gpu(0), gpu(i + 1)], i * 1_000);
    const kept = day.read(1_000_000);
    expect(kept).toHaveLength(256);
    expect([kept[0]?.index, kept.at(-1)?.index]).toEqual([0, 1_000]);
  });
});

describe.skipIf(!process.env.GPU_OWNER_SOAK)(`${DAYS} days of uptime`, () => {
  beforeEach(() => {
    vi.useFakeTimers({
      toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance', 'hrtime'],
    });
  });
  afterEach(() => vi.useRealTimers());

  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const heap = (): number => {
    for (let i = 0; i < 3; i++) collect();
    return process.memoryUsage().heapUsed;
  };

  test('take no more memory than a day: viewers come and go, GPUs and users change, the driver fails', {
    timeout: 120_000,
  }, async () => {
    let looks = 0;
    const view = {
      machines: [] as unknown[],
      host: null,
      snapshot: null as MachineSnapshot | null,
      problem: null as string | null,
      failure: null,
      jobs: [],
      async look() {
        looks++;
        this.problem = looks % 50 === 0 ? `failure ${looks}` : null;
        const names = Array.from({ length: 8 }, (_, i) => ({
          lease: looks % 3 === 0 ? null : { user: `user ${looks} ${i}` },
          uuid: i === 7 ? `GPU-${looks % 5_000}` : `GPU-${i}`,
        }));
        const time = new Date().toISOString();
        this.snapshot = {
          time,
          gpus: names.map((each, i) => gpu(i, each)),
          queue: [],
          waiting: 0,
          intruders: [],
        };
      },
    };
    view.machines.push(view);
    const feed = new Feed(view as unknown as MachineView, 30_000);
    let lines = 0;
    const viewer = (): ServerResponse => {
      const listeners: (() => void)[] = [];
      return {
        writableNeedDrain: false,
        write: () => lines++,
        on: (_: string, listener: () => void) => listeners.push(listener),
        destroy: () => {
          for (const each of listeners) each();
        },
      } as unknown as ServerResponse;
    };
    const live = async (days: number) => {
      for (let hour = 0; hour < days * 24; hour++) {
        const viewers = Array.from({ length: hour % 7 }, viewer);
        for (const each of viewers) feed.add(each);
        await vi.advanceTimersByTimeAsync(10 * 60_000);
        for (const each of viewers) each.destroy();
        await vi.advanceTimersByTimeAsync(50 * 60_000);
      }
    };
    await live(2);
    const before = heap();
    const answerBefore = JSON.stringify(feed.history()).length;
    const [looksBefore, linesBefore] = [looks, lines];
    await live(DAYS);
    expect(heap() - before).toBeLessThan(2 * 2 ** 20);
    // One per minute, and two while a browser watches.
    expect((looks - looksBefore) / (DAYS * 24 * 60)).toBeGreaterThan(0.9);
    expect((looks - looksBefore) / (DAYS * 24 * 60)).toBeLessThan(1.3);
    expect(lines - linesBefore).toBeGreaterThan(DAYS * 24 * 20);
    expect(JSON.stringify(feed.history()).length).toBeLessThan(answerBefore * 1.5);
    feed.close();
  });

  test('take no more memory with five hosts, of which some are down and one always is', {
    timeout: 120_000,
  }, async () => {
    const hosts = Array.from({ length: 5 }, (_, i) => ({ name: `host-${i}`, command: null }));
    const view = new FleetView(hosts as unknown as Host[]);
    const feed = new Feed(view, 30_000);
    let minute = 0;
    const snapshotOf = (i: number) => ({
      time: new Date().toISOString(),
      gpus: [gpu(0), gpu(1, { uuid: `GPU-${minute % 3_000}`, lease: { user: `user ${minute}` } })],
      queue: Array.from({ length: (minute + i) % 20 }, (_, position) => ({
        position,
        user: `user ${minute}`,
      })),
      waiting: (minute + i) % 20,
      intruders: [],
      problem: null,
    });
    const live = async (days: number) => {
      for (const end = minute + days * 24 * 60; minute < end; minute++) {
        for (const [i, machine] of view.machines.entries()) {
          const isDown = i === 4 || (minute + 300 * i) % 1_440 < 240;
          const error = { code: 'ERR_HOST', message: `connection ${minute} refused` };
          machine.take(
            (isDown ? { records: null, error } : { records: [snapshotOf(i)], error: null }) as Parameters<
              typeof machine.take
            >[0],
          );
        }
        await vi.advanceTimersByTimeAsync(60_000);
      }
    };
    await live(2);
    const before = heap();
    await live(DAYS);
    expect(heap() - before).toBeLessThan(2 * 2 ** 20);
    const { machines } = feed.history();
    expect(machines.map(({ host }) => host)).toEqual(hosts.map(({ name }) => name));
    expect(machines.map(({ gpus }) => gpus.length > 0)).toEqual([true, true, true, true, false]);
    for (const { gpus } of machines) expect(gpus.length).toBeLessThanOrEqual(256);
    // Four hours of each day the host was down: nothing is known of these.
    const gaps = (machines[0]?.gpus[0]?.utilizationPercent ?? []).filter((each) => each === null).length;
    expect(gaps / SLOTS).toBeGreaterThan(0.14);
    expect(gaps / SLOTS).toBeLessThan(0.2);
    feed.close();
  });
});
