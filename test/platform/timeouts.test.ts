import { afterEach, beforeEach, expect, test } from 'vitest';
import { Machine } from '../support/machine.ts';
import { withTimeouts } from '../support/time.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

const say = (env: { GPU_OWNER_TIMEOUTS?: string }) =>
  machine.runCommand(['run', '--for=100ms', '--', 'sleep', '600'], { env });

test('a command has half a minute to end at its limit, unless GPU_OWNER_TIMEOUTS says otherwise', async () => {
  expect((await say({})).stderr).toMatch(/SIGTERM, and after 30 s SIGKILL\n$/);
  expect((await say(withTimeouts({ grace: 4_000, upgrade: 1 }))).stderr).toMatch(/and after 4 s SIGKILL\n$/);
});

test.each(['unheard:1', 'grace', 'grace:-1', 'grace:1s', 'toString:1'])(
  'GPU_OWNER_TIMEOUTS=%s is refused',
  async (value) => {
    const { code, stderr } = await say({ GPU_OWNER_TIMEOUTS: value });
    expect(code).not.toBe(0);
    expect(stderr).toContain(`GPU_OWNER_TIMEOUTS needs NAME:MS,…, not '${value}'; names: grace,upgrade`);
  },
);
