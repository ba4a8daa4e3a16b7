import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { Machine } from '../support/machine.ts';

let machine: Machine;
afterEach(() => machine.close());

/** Runs a program of fixtures/ on the machine. */
function runFixture(name: string, ...args: string[]) {
  return machine.run([process.execPath, join(import.meta.dirname, 'fixtures', name), ...args]);
}

test.each(['async', 'sync'])(
  'a worker thread that takes snapshots (%s) can be ended at any time',
  async (how) => {
    machine = new Machine(4);
    await machine.status();
    machine.set('latency=memory:2000');
    const { code, signal, stdout, stderr } = await runFixture('ended-workers.mjs', how);
    expect({ code, signal, stdout, stderr }).toEqual({ code: 0, signal: null, stdout: '4\n', stderr: '' });
  },
);

test('a worker thread can end as soon as it has its answer', async () => {
  machine = new Machine(2);
  await machine.status();
  const { code, signal, stdout, stderr } = await runFixture('many-workers.mjs');
  expect({ code, signal, stdout, stderr }).toEqual({ code: 0, signal: null, stdout: 'alive\n', stderr: '' });
});

test('a claim that fails because CUDA numbers are unknown leaves nothing in the environment', async () => {
  machine = new Machine(3);
  machine.set('gpu=0', 'hang=uuid');
  const { code, stdout, stderr } = await runFixture('refused-by-index.mjs');
  expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: 'ERR_DRIVER true\ntrue\n', stderr: '' });
});

test('two snapshots at a time do not block the event loop, even if a GPU hangs', async () => {
  machine = new Machine(2);
  await machine.status();
  machine.set('gpu=1', 'hang=memory');
  const { stdout } = await runFixture('event-loop.mjs');
  expect(stdout).toBe('true\n');
});

test('a worker thread that alone has the library can end while a call of the driver is out', async () => {
  machine = new Machine(2);
  await machine.status();
  const { code, signal, stdout, stderr } = await runFixture('terminated-worker.mjs');
  expect({ code, signal, stdout, stderr }).toEqual({
    code: 0,
    signal: null,
    stdout: 'free,unavailable\nalive\n',
    stderr: '',
  });
});
