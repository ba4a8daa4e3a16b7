// GPUs whose memory has faults: what claims, status and metrics make of them.
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Machine } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine('h200x8');
});
afterEach(() => machine.close());

test('a GPU is unhealthy after memory errors that ECC could not correct, or a repair that failed', async () => {
  expect(await machine.states()).toEqual(Array(8).fill('free'));
  machine.set('gpu=0', 'ecc-errors=1');
  machine.set('gpu=1', 'memory-repair=failed');
  const [first, second, third] = await machine.status();
  expect(first).toMatchObject({
    state: 'unavailable',
    reason: expect.stringMatching(/^unhealthy: 1 uncorrectable memory error \(ECC\) since its last reset/),
  });
  expect(second).toMatchObject({
    state: 'unavailable',
    reason: expect.stringMatching(/^unhealthy: faulty memory could not be replaced/),
  });
  expect(third).toMatchObject({ state: 'free', reason: null });
});

test('an unhealthy GPU is claimed with --force alone', async () => {
  machine.set('gpu=0', 'ecc-errors=3');
  const refused = await machine.runCommand(['run', '--no-wait', '--devices=0', 'true']);
  expect(refused).toMatchObject({
    code: 75,
    stderr: expect.stringMatching(/GPU 0: unhealthy: 3 uncorrectable/),
  });
  expect((await machine.runCommand(['run', '-n7', '--no-wait', 'true'])).code).toBe(0);
  const forced = await machine.runCommand(['run', '--force', '--devices=0', '--', 'sh', '-c', 'exit 3']);
  expect(forced.code).toBe(3);
});

test('a claim asks for the health of the GPU that it takes, however short ago another look was', async () => {
  const { code, stdout, stderr } = await machine.runScript(`
    import { simulator } from ${JSON.stringify(join(import.meta.dirname, 'fixtures/simulator.mjs'))};
    const claim = () => new GPUOwner(1, { placeholder: 'none' });
    const chosen = claim();
    const unhealthy = chosen.devices[0].index;
    chosen.release();
    simulator('set', 'gpu=' + unhealthy, 'ecc-errors=1');
    const claimed = Array.from({ length: 7 }, () => claim().devices[0].index);
    let reason;
    try {
      claim();
    } catch (error) {
      reason = error.message;
    }
    console.log(JSON.stringify({ unhealthy, claimed, reason }));
  `);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  const { unhealthy, claimed, reason } = JSON.parse(stdout);
  expect(claimed).not.toContain(unhealthy);
  expect(reason).toContain(`GPU ${unhealthy}: unhealthy: 1 uncorrectable`);
});

test('a repair that waits for a reset is a warning, and no obstacle', async () => {
  machine.set('gpu=2', 'memory-repair=pending');
  const [, , third, fourth] = await machine.status();
  expect(third).toMatchObject({ state: 'free', reason: null, memoryRepairPending: true });
  expect(fourth).toMatchObject({ memoryRepairPending: false });
  expect((await machine.runCommand(['status'])).stdout).toMatch(
    / {2}2 .* free\n +warning: spare memory takes the place of faulty memory at its next reset/,
  );
  expect((await machine.runCommand(['run', '--devices=2', 'true'])).code).toBe(0);
});
