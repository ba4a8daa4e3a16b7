// Events of the simulated driver: XID errors, as programs that watch over GPUs wait for them.
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Session, Simulated } from '../support/simulated.ts';

const TIMEOUT = 10;
const GPU_IS_LOST = 15;

let machine: Simulated;
let session: Session;
beforeEach(async () => {
  machine = new Simulated(3);
  session = machine.session();
  await session.do('nvml.init() or [nvml.kept(i) for i in range(3)]');
});
afterEach(() => machine[Symbol.dispose]());

test('an XID error wakes who waits, and tells the GPU', async () => {
  await session.do('events = nvml.event_set(0, 2)');
  expect(await session.do('nvml.wait(events, 0)')).toBe(TIMEOUT);
  const answer = session.do('nvml.wait(events, 60000)');
  machine.set('gpu=1', 'xid=31', 'gpu=2', 'xid=48');
  expect(await answer).toEqual({ gpu: 2, xid: 48 });
  expect(await session.do('nvml.wait(events, 0)')).toBe(TIMEOUT);
});

test('a set of events tells only later ones, in order, in every process', async () => {
  machine.set('gpu=0', 'xid=13');
  const other = machine.session();
  await other.do('nvml.init() or nvml.kept(0)');
  for (const each of [session, other]) await each.do('events = nvml.event_set(0)');
  machine.set('gpu=0', 'xid=31', 'xid=43');
  for (const each of [session, other])
    expect(await each.do('[nvml.wait(events, 0) for _ in range(3)]')).toEqual([
      { gpu: 0, xid: 31 },
      { gpu: 0, xid: 43 },
      TIMEOUT,
    ]);
  // The last of very many events are kept.
  machine.set('gpu=0', ...Array.from({ length: 20 }, (_, i) => `xid=${i + 1}`));
  expect(await session.do('[nvml.wait(events, 0)["xid"] for _ in range(8)]')).toEqual([
    13, 14, 15, 16, 17, 18, 19, 20,
  ]);
  expect(await session.do('nvml.wait(events, 0)')).toBe(TIMEOUT);
});

test('a lost GPU sends XID 79, and then the wait fails', async () => {
  await session.do('events = nvml.event_set(0, 1)');
  machine.set('gpu=1', 'lost=on');
  expect(await session.do('[nvml.wait(events, 0) for _ in range(2)]')).toEqual([
    { gpu: 1, xid: 79 },
    GPU_IS_LOST,
  ]);
  await expect(session.do('nvml.event_set(1)')).rejects.toThrow(`Failed: ${GPU_IS_LOST}`);
  machine.set('gpu=1', 'lost=off');
  expect(await session.do('nvml.wait(events, 0)')).toBe(TIMEOUT);
});

test('waiting takes its time, and no processor', async () => {
  const [code, waited, busy] = await session.do(
    '[(start := time.monotonic()), (cpu := time.process_time()), nvml.wait(nvml.event_set(0), 400), time.monotonic() - start, time.process_time() - cpu][2:]',
  );
  expect(code).toBe(TIMEOUT);
  expect(waited).toBeGreaterThanOrEqual(0.4);
  expect(busy).toBeLessThan(0.1);
});

test('the older function works; freed sets and unsupported events are refused', async () => {
  await session.do('events = nvml.event_set(0)');
  machine.set('gpu=0', 'xid=79');
  expect(await session.do('nvml.wait(events, 0, nvml.EventV1, "")')).toEqual({ gpu: 0, xid: 79 });
  expect(await session.do('[nvml.library.nvmlEventSetFree(events) for _ in range(2)]')).toEqual([0, 2]);
  expect(await session.do('[nvml.wait(events, 0), nvml.wait(None, 0)]')).toEqual([2, 2]);
  await expect(session.do('nvml.event_set(0, types=4)')).rejects.toThrow('Failed: 3');
  expect(await session.do('nvml.ask("SupportedEventTypes", 0, type=nvml.c_ulonglong)')).toBe(0b1011);
});

test('a wait has the errors and the latency that are set', async () => {
  await session.do('events = nvml.event_set(0)');
  machine.set('gpu=0', 'error=events:999');
  expect(await session.do('nvml.wait(events, 0)')).toBe(999);
  machine.set('gpu=0', 'error=off', 'gpu=1', 'error=events:999');
  expect(await session.do('nvml.wait(events, 0)')).toBe(TIMEOUT);
  machine.set('latency=events:20000');
  expect(await session.do('measure(lambda: nvml.wait(events, 0), 1)')).toBeGreaterThanOrEqual(20_000);
});
