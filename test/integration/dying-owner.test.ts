import { afterEach, describe, expect, test } from 'vitest';
import { finished, Machine, output } from '../support/machine.ts';
import { quickest } from '../support/time.ts';

let machine: Machine;
afterEach(() => machine.close());

const HOLD = `const owner = new GPUOwner(1); console.log('claimed'); setInterval(() => {}, 1000)`;
const CLAIM = `const begin = performance.now(); new GPUOwner(1); console.log(Math.round(performance.now() - begin))`;

/** Whether the claim right after a holder's kill -9 succeeds, and after how many ms. */
async function claimAfterKill(teardown: number) {
  machine = new Machine(1);
  const holder = machine.start([process.execPath, '--input-type=module', '-e', machine.script(HOLD)]);
  await output(holder, /claimed/);
  machine.set(`teardown=${teardown}`);
  holder.kill('SIGKILL');
  await finished(holder);
  expect(machine.processes(0).length).toBe(teardown > 0 ? 1 : 0); // the driver hasn't forgotten it
  return machine.runScript(CLAIM);
}

describe('the GPU of a holder that was just killed', () => {
  test.each([1_000])(
    'is claimed, not called busy, when the driver takes %i ms to forget it',
    async (teardown) => {
      const limit = teardown + 1_500;
      const claim = async () => {
        const { code, stdout, stderr } = await claimAfterKill(teardown);
        expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
        await machine.close();
        return Number(stdout);
      };
      expect(await quickest(limit, claim)).toBeLessThan(limit);
    },
  );

  test('is called busy when the driver never forgets it, after 2 s and not much later', async () => {
    const begin = performance.now();
    const { code, stderr } = await claimAfterKill(60_000);
    expect(code).not.toBe(0);
    expect(stderr).toMatch(/ERR_GPU_UNAVAILABLE/);
    expect(performance.now() - begin).toBeLessThan(12_000);
  });
});
