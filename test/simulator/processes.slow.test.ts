import { chmodSync, existsSync } from 'node:fs';
import { dirname } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { sendSignal } from '../support/processes.ts';
import { CONTEXT, canBeNobody, GiB, NOBODY, Simulated, until } from '../support/simulated.ts';

let machine: Simulated;
beforeEach(() => {
  machine = new Simulated(2);
});
afterEach(() => machine[Symbol.dispose]());

test('a process is listed from its context on, with the memory of context and allocations', async () => {
  const watcher = machine.session();
  const user = machine.session();
  await watcher.do('nvml.init()');
  const seen = () => watcher.do('[nvml.processes(1), nvml.memory_v2(1)["used"]]');

  expect(await user.do('cuda.init()')).toBe(0);
  expect(await seen()).toEqual([[], 0]);
  const [code, context] = await user.do('cuda.retain(1)');
  expect(code).toBe(0);
  expect(await seen()).toMatchObject([[{ pid: user.pid, memory: CONTEXT }], CONTEXT]);
  const [, address] = await user.do(`cuda.push(${context}) or cuda.allocate(${GiB})`);
  expect(await seen()).toMatchObject([[{ pid: user.pid, memory: CONTEXT + GiB }], CONTEXT + GiB]);
  expect(await user.do(`cuda.free(${address})`)).toBe(0);
  expect(await seen()).toMatchObject([[{ memory: CONTEXT }], CONTEXT]);
  expect(await user.do('cuda.release(1)')).toBe(0);
  expect(await seen()).toEqual([[], 0]);
  expect(await watcher.do('nvml.pids(0)')).toEqual([]);
});

test('a killed process is gone although its zombie is still there', async () => {
  const parent = machine.session();
  await parent.do('nvml.init()');
  // The child is killed and not waited for: kill(pid, 0) goes on succeeding.
  expect(await parent.do('rounds(5)')).toBeLessThan(0.5);
});

test('slots of killed processes are reused, so more processes than slots are no problem', async () => {
  const session = machine.session();
  await session.do('nvml.init()');
  // Killed, so that none tidies up; and beginning at another slot each, by their pids.
  for (let i = 0; i < (process.env.GPU_OWNER_SOAK ? 11 : 2); i++)
    expect(await session.do('burst(100)')).toBe(true);
  expect(await session.do('[nvml.pids(0), nvml.memory_v2(0)["used"]]')).toEqual([[], 0]);
});

test('a forked child keeps its parent listed, and cannot use CUDA itself', async () => {
  const watcher = machine.session();
  const parent = machine.session();
  await watcher.do('nvml.init()');
  await parent.do('cuda.use(0)');
  expect(
    await parent.do(
      'cuda.in_child(lambda: [cuda.init(), cuda.count(), cuda.retain()[0], cuda.allocate(1)[0]])',
    ),
  ).toEqual([3, -3, 3, 3]);
  const child = await parent.do('(lambda pid: pid or [time.sleep(60), os._exit(0)])(os.fork())');
  parent.kill();
  await parent.ended();
  expect(await watcher.do('nvml.pids(0)')).toEqual([parent.pid]);
  sendSignal(child, 'SIGKILL');
  await until(async () => (await watcher.do('nvml.pids(0)')).length === 0);
});

test('the driver forgets the dead after the teardown delay, counted from when it was seen', async () => {
  const watcher = machine.session();
  const user = machine.session();
  machine.set('teardown=300');
  await watcher.do('nvml.init()');
  await user.do('cuda.use(0)');
  user.kill();
  await user.ended();
  const [waited, memory] = await watcher.do(
    '(lambda start, memory: [(lambda: [None for _ in iter(lambda: nvml.pids(0), [])])(), [time.monotonic() - start, memory]][1])(time.monotonic(), nvml.memory_v2(0)["used"])',
  );
  expect(memory).toBe(CONTEXT);
  expect(waited).toBeGreaterThan(0.28);
  expect(waited).toBeLessThan(10);
  expect(await watcher.do('nvml.memory_v2(0)["used"]')).toBe(0);
});

test('no process is lost, and none stays, when many come and go at once', async () => {
  const watcher = machine.session();
  await watcher.do('nvml.init()');
  expect(await watcher.do(`crowd(64, ${GiB}, ${CONTEXT})`)).toBe(64 * (CONTEXT + GiB));
});

describe.skipIf(!canBeNobody())('two users', () => {
  test('each sees the processes of the other, for any owner of the state and any umask', async () => {
    for (const [first, second] of [
      [undefined, NOBODY],
      [NOBODY, undefined],
    ]) {
      using shared = new Simulated(2);
      // The one who makes the base directory must be allowed to.
      chmodSync(dirname(shared.directory), 0o777);
      const one = shared.session({ umask: '077', ...(first === undefined ? {} : { uid: first }) });
      expect(await one.do('cuda.use(0)')).toBe(0);
      const other = shared.session({ umask: '077', ...(second === undefined ? {} : { uid: second }) });
      expect(await other.do('cuda.use(1) or nvml.init()')).toBe(0);
      expect(await one.do('nvml.init() or [nvml.pids(0), nvml.pids(1)]')).toEqual([[one.pid], [other.pid]]);
      expect(await other.do('[nvml.pids(0), nvml.pids(1)]')).toEqual([[one.pid], [other.pid]]);
      one.kill();
      await one.ended();
      expect(await other.do('[nvml.pids(0), nvml.pids(1)]')).toEqual([[], [other.pid]]);
      expect(existsSync(shared.home)).toBe(true);
    }
  });
});

test('processes beside an MPS server are its clients, listed twice and let in by exclusive-process mode', async () => {
  machine.set('gpu=0', 'compute-mode=exclusive-process');
  const watcher = machine.session();
  await watcher.do('nvml.init()');
  const server = await machine.occupy('0', '--type', 'mps-server');
  const lists = () =>
    watcher.do('[sorted(nvml.pids(0)), nvml.pids(0, "MPSCompute"), nvml.memory_v2(0)["used"]]');
  expect(await lists()).toEqual([[server.pid], [], 30 * 2 ** 20]);
  const client = machine.session();
  expect(await client.do('cuda.use(0)')).toBe(0);
  const pids = [server.pid, client.pid].sort((a, b) => Number(a) - Number(b));
  expect(await lists()).toEqual([pids, [client.pid], CONTEXT + 30 * 2 ** 20]);
  server.kill('SIGKILL');
  await until(async () => (await watcher.do('nvml.pids(0, "MPSCompute")')).length === 0);
  const late = machine.session();
  expect(await late.do('cuda.use(0)')).toBe(46);
});

test('a process that computes and draws is on both lists; other numbers are given to all', async () => {
  const watcher = machine.session();
  await watcher.do('nvml.init()');
  const both = await machine.occupy('0', '--type', 'compute+graphics');
  machine.set('pid-offset=1000000');
  const pid = Number(both.pid) + 1_000_000;
  expect(await watcher.do('[nvml.pids(0), nvml.pids(0, "Graphics")]')).toEqual([[pid], [pid]]);
  expect(machine.witness(0)).toEqual([both.pid]);
});
