import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { CONTEXT, GiB, MiB, type Session, Simulated } from '../support/simulated.ts';

const machine = new Simulated(2);
let session: Session;
beforeAll(() => machine.show());
afterAll(() => machine[Symbol.dispose]());
beforeEach(() => {
  machine.tool(['reset']);
  session = machine.session();
  return async () => {
    session.kill();
    await session.ended();
  };
});

test('nothing works before cuInit, except the versions', async () => {
  expect(await session.do('[cuda.count(), cuda.device(0)[0], cuda.retain()[0], cuda.current()[0]]')).toEqual([
    -3, 3, 3, 3,
  ]);
  expect(
    await session.do('[cuda.allocate(1)[0], cuda.info()[0], cuda.create()[0], cuda.synchronize()]'),
  ).toEqual([3, 3, 3, 3]);
  expect(await session.do('cuda.version()')).toEqual([0, 13000]);
  expect(await session.do('[cuda.library.cuInit(1), cuda.init(), cuda.init(), cuda.count()]')).toEqual([
    1, 0, 0, 2,
  ]);
});

test('a device has the name, UUID and memory of its GPU', async () => {
  await session.do('cuda.init()');
  expect(await session.do('[cuda.name(1), cuda.uuid(1), cuda.uuid(1, ""), cuda.bus(1)]')).toEqual([
    'Simulated GPU',
    'GPU-00000000-0000-4000-8000-000000000001',
    'GPU-00000000-0000-4000-8000-000000000001',
    '0000:02:00.0',
  ]);
  expect(
    await session.do(
      '[cuda.attribute(75), cuda.attribute(76), cuda.attribute(33, 1), cuda.attribute(9999)[0]]',
    ),
  ).toEqual([[0, 9], [0, 0], [0, 2], 1]);
  expect(await session.do('cuda.total(0)')).toEqual([0, 80 * GiB - 512 * MiB]);
});

test('the primary context is counted, and its last release frees what was allocated', async () => {
  await session.do('[cuda.init(), nvml.init()]');
  expect(await session.do('cuda.state(0)')).toEqual([0, 0]);
  const [, context] = await session.do('cuda.retain(0)');
  expect(await session.do('cuda.retain(0)')).toEqual([0, context]);
  expect(await session.do('cuda.state(0)')).toEqual([0, 1]);
  // Retaining makes nothing current.
  expect(await session.do('[cuda.allocate(1)[0], cuda.info()[0], cuda.current()]')).toEqual([
    201,
    201,
    [0, null],
  ]);
  expect(await session.do(`[cuda.push(${context}), cuda.allocate(${GiB})[0], cuda.pop()]`)).toEqual([
    0,
    0,
    [0, context],
  ]);
  expect(await session.do('nvml.processes(0)[0]["memory"]')).toBe(CONTEXT + GiB);
  expect(await session.do('cuda.release(0)')).toBe(0);
  expect(await session.do('nvml.processes(0)[0]["memory"]')).toBe(CONTEXT + GiB);
  expect(await session.do('cuda.release(0)')).toBe(0);
  expect(await session.do('[nvml.pids(0), nvml.memory_v2(0)["used"], cuda.state(0)]')).toEqual([
    [],
    0,
    [0, 0],
  ]);
  expect(await session.do('cuda.release(0)')).toBe(201);
  // And again from the start.
  expect(await session.do('cuda.use(0, 2**20)')).toBe(0);
  expect(await session.do('nvml.processes(0)[0]["memory"]')).toBe(CONTEXT + MiB);
});

test('a reset destroys the primary context even if a thread retains it', async () => {
  await session.do('nvml.init()');
  await session.do('[cuda.use(0, 2**30), cuda.retain(0)]');
  expect(
    await session.do('[cuda.reset(0), nvml.pids(0), cuda.state(0), cuda.allocate(1)[0], cuda.synchronize()]'),
  ).toEqual([0, [], [0, 0], 709, 709]);
});

test('a context of one’s own is current when it is made, on a stack of each thread', async () => {
  await session.do('[cuda.init(), nvml.init()]');
  const [, first] = await session.do('cuda.create(0)');
  const [, second] = await session.do('cuda.create(1)');
  expect(await session.do('[cuda.current(), cuda.current_device()]')).toEqual([
    [0, second],
    [0, 1],
  ]);
  expect(await session.do('[cuda.pop(), cuda.current(), cuda.current_device()]')).toEqual([
    [0, second],
    [0, first],
    [0, 0],
  ]);
  expect(await session.do(`[cuda.set_current(${second}), cuda.current_device()]`)).toEqual([0, [0, 1]]);
  expect(await session.do('[cuda.set_current(None), cuda.current()[1], cuda.pop()[0]]')).toEqual([
    0,
    null,
    201,
  ]);
  // Another thread has a stack of its own.
  await session.do(`cuda.push(${first})`);
  await session.do('seen = []');
  await session.do('[(t := threading.Thread(target=lambda: seen.append(cuda.current()))).start(), t.join()]');
  expect(await session.do('seen')).toEqual([[0, null]]);
  // Two contexts of one process on a GPU: one entry.
  const [, third] = await session.do('cuda.create(0)');
  expect(await session.do('nvml.processes(0)')).toMatchObject([{ pid: session.pid, memory: 2 * CONTEXT }]);
  expect(await session.do(`[cuda.destroy(${third}), cuda.destroy(${third}), cuda.destroy(123)]`)).toEqual([
    0, 709, 201,
  ]);
  expect(await session.do('cuda.current()')).toEqual([0, first]);
  expect(
    await session.do(`[cuda.destroy(${first}), cuda.destroy(${second}), nvml.pids(0), nvml.pids(1)]`),
  ).toEqual([0, 0, [], []]);
});

test('memory has its size, an end, and errors for wrong addresses', async () => {
  await session.do('cuda.use(0)');
  const [, free, total] = await session.do('cuda.info()');
  expect(total).toBe(80 * GiB - 512 * MiB);
  expect(free).toBe(total - CONTEXT);
  expect(await session.do('[cuda.allocate(0)[0], cuda.free(0), cuda.free(4096)]')).toEqual([1, 0, 1]);
  expect(await session.do(`cuda.allocate(${free + 1})[0]`)).toBe(2);
  expect(await session.do('cuda.allocate(2**63)[0]')).toBe(2);
  const [code, address] = await session.do(`cuda.allocate(${free})`);
  expect(code).toBe(0);
  expect(await session.do('[cuda.info()[1], cuda.allocate(1)[0]]')).toEqual([0, 2]);
  expect(await session.do(`[cuda.free(${address}), cuda.free(${address}), cuda.info()[1]]`)).toEqual([
    0,
    1,
    free,
  ]);
  // A context needs memory as well.
  const other = machine.session();
  await session.do(`cuda.allocate(${free - 400 * MiB})`);
  expect(await other.do('cuda.use(0)')).toBe(2);
  expect(await other.do('nvml.init() or nvml.pids(0)')).toEqual([session.pid]);
  other.kill();
});

test('several processes never get more memory than there is', async () => {
  const [got, free] = await session.do('grab(6)');
  expect(got).toBeGreaterThan(60);
  expect(free).toBeLessThan(GiB);
});

describe('compute modes', () => {
  test('in exclusive-process mode a second process gets 46, until the first is gone', async () => {
    machine.set('gpu=0', 'compute-mode=exclusive-process');
    const other = machine.session();
    expect(await session.do('[cuda.use(0), cuda.create(0)[0]]')).toEqual([0, 0]);
    expect(await other.do('cuda.init() or cuda.retain(0)[0]')).toBe(46);
    expect(await other.do('[cuda.retain(1)[0], cuda.attribute(20)]')).toEqual([0, [0, 3]]);
    expect(await other.do('nvml.init() or [nvml.number("GetComputeMode", 0), nvml.pids(0)]')).toEqual([
      [0, 3],
      [session.pid],
    ]);
    session.kill();
    await session.ended();
    expect(await other.do('cuda.retain(0)[0]')).toBe(0);
    other.kill();
  });

  test('exclusive-process mode counts processes that came before it was switched on', async () => {
    expect(await session.do('cuda.use(0)')).toBe(0);
    machine.set('gpu=0', 'compute-mode=exclusive-process');
    const other = machine.session();
    expect(await other.do('cuda.use(0)')).toBe(46);
    await session.do('cuda.release(0)');
    expect(await other.do('cuda.use(0)')).toBe(0);
    other.kill();
  });

  test('exclusive-process mode gives the GPU to exactly one of many processes that come at once', async () => {
    machine.set('gpu=0', 'compute-mode=exclusive-process');
    for (let round = 0; round < 10; round++)
      expect(await session.do('race(8)')).toEqual([0, 46, 46, 46, 46, 46, 46, 46]);
  });

  test('in prohibited mode nobody gets a context', async () => {
    machine.set('gpu=0', 'compute-mode=prohibited');
    expect(await session.do('[cuda.use(0), cuda.create(0)[0], cuda.retain(1)[0]]')).toEqual([999, 999, 0]);
  });
});
