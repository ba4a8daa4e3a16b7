// Processes that are suspended in the middle of a claim cost the others time, and no GPU.
import type { ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'vitest';
import { openWitness } from '../../bench/witness.js';
import { finished, Machine, pause, processState, until } from '../support/machine.ts';
import { quickest, WAIT_TIMEOUT_MS } from '../support/time.ts';
import { Waiters } from './waiters.ts';

const SOAK = process.env.GPU_OWNER_SOAK !== undefined;
const CLAIMANTS = 16;
const SUSPENDED = 6;
/** In s: when the first is suspended, within which time all are, and when they go on. */
const [FIRST, WITHIN, RESUMED] = SOAK ? [3, 3, 24] : [1, 1, 7];
/** How they claim, and by which conventions. */
const KINDS: [how: string, conventions: string[]][] = [
  ['wait', ['safe-gpu']],
  ...(SOAK
    ? ([
        ['wait', []],
        ['now', ['safe-gpu']],
        ['now', []],
      ] as [string, string[]][])
    : []),
];
/**
 * The last part of the time before they go on, in s. This part begins when the delays that are allowed, 4 s, are over for sure.
 */
const LAST = SOAK ? 8 : 2.5;
/** In s; or eight times the longest silence before, on a machine that is busy. */
const MAX_SILENCE_S = 4;
/** How many the others make in a second of the last part: each may wait for the decision lock of one that is suspended. */
const CLAIMS = 1;

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);

function newMachine({ onTestFinished }: TestContext, gpus: number): Machine {
  const machine = new Machine(gpus);
  onTestFinished(() => machine.close());
  return machine;
}

interface Hold {
  pid: number;
  /** On the monotonic clock, in s. */
  at: number;
}

function claimsIn(log: string): Hold[] {
  return [...readFileSync(log, 'utf8').matchAll(/^(\d+) had (\d+) /gm)].map(([, pid, at]) => ({
    pid: Number(pid),
    at: Number(at) / 1e9,
  }));
}

const clock = () => Number(process.hrtime.bigint()) / 1e9;

describe.concurrent(`of ${CLAIMANTS} claimants ${SUSPENDED} are suspended at random moments, and the others go on`, () => {
  test.for(KINDS)(
    'with %s, conventions %s',
    { timeout: (RESUMED + 90) * 1000, retry: 0 },
    async ([how, conventions], context) => {
      const { expect } = context;
      const machine = newMachine(context, 8);
      const witness = openWitness(machine.directory);
      const words = [process.execPath, fixture('restless.mjs'), witness.path, how, ...conventions];
      const claimants = Array.from({ length: CLAIMANTS }, () => machine.start(words));
      const outcomes = claimants.map((child) => finished(child));
      const claiming = () => new Set(claimsIn(witness.path).map(({ pid }) => pid));
      await until(() => claiming().size === CLAIMANTS, WAIT_TIMEOUT_MS);
      const started = clock();
      const suspended = claimants.slice(0, SUSPENDED);
      await Promise.all(
        suspended.map(async (child) => {
          await pause((FIRST + Math.random() * WITHIN) * 1000);
          child.kill('SIGSTOP');
        }),
      );
      await pause((started + RESUMED - clock()) * 1000);
      const resumed = clock();
      for (const child of suspended) child.kill('SIGCONT');
      const goesOn = ({ pid }: ChildProcess) =>
        claimsIn(witness.path).some((claim) => claim.pid === pid && claim.at > resumed);
      await until(() => suspended.every(goesOn), WAIT_TIMEOUT_MS);
      for (const child of claimants) child.stdin?.end();
      const results = await Promise.all(outcomes);

      const others = new Set(claimants.slice(SUSPENDED).map(({ pid }) => pid));
      const claims = claimsIn(witness.path)
        .filter(({ pid, at }) => others.has(pid) && at > started && at < resumed)
        .map(({ at }) => at)
        .sort((a, b) => a - b);
      const silences = [...claims, resumed].map((at, i) => at - (claims[i - 1] ?? started));
      const silence = Math.max(...silences);
      const silenceBefore = Math.max(...silences.filter((_, i) => (claims[i] ?? resumed) < started + FIRST));
      const before = claims.filter((at) => at < started + FIRST).length / FIRST;
      const last = claims.filter((at) => at > resumed - LAST).length / LAST;
      console.log(
        `${how} ${conventions}: silence ${silence.toFixed(2)} s (${silenceBefore.toFixed(2)} s before), ${Math.round(before)} claims/s before, ${Math.round(last)} claims/s at last`,
      );
      expect(results.map(({ code, stderr }) => ({ code, stderr })).filter(({ code }) => code !== 0)).toEqual(
        [],
      );
      witness.check();
      expect(await machine.states()).toEqual(Array(8).fill('free'));
      expect(silence).toBeLessThanOrEqual(Math.max(MAX_SILENCE_S, 8 * silenceBefore));
      expect(last).toBeGreaterThanOrEqual(Math.min(CLAIMS, before / 4));
    },
  );
});

test('a suspended first waiter delays others by seconds only', async (context) => {
  const { expect } = context;
  const delay = async () => {
    const waiters = new Waiters(newMachine(context, 1));
    const { release } = await waiters.holder(1);
    const first = waiters.waiter([{ name: 'first' }]);
    const firstOutcome = finished(first);
    await waiters.untilWaiting(1);
    const second = finished(waiters.waiter([{ name: 'second' }]));
    await waiters.untilWaiting(2);
    first.kill('SIGSTOP');
    release();
    const started = performance.now();
    expect((await second).stdout).toMatch(/^got second/);
    const took = performance.now() - started;
    first.kill('SIGCONT');
    expect((await firstOutcome).stdout).toMatch(/^got first/);
    return took;
  };
  expect(await quickest(4_500, delay)).toBeLessThan(4_500);
});

test('a claimant that was suspended after its last look looks again', async (context) => {
  const { expect } = context;
  const machine = newMachine(context, 2);
  const source = `const owner = new GPUOwner({ placeholder: 'none' }); console.log(owner.devices[0].index);`;
  const words = [process.execPath, '--input-type=module', '-e', machine.script(source)];
  const suspended = machine.start(words, { env: { GPU_OWNER_STOP_AT: 'looked-again' } });
  await until(() => processState(suspended.pid as number) === 'T', WAIT_TIMEOUT_MS);
  const stranger = machine.startCommand(['run', '--devices', '0', '--', 'sleep', '60'], {
    env: {
      GPU_OWNER_LOCK_DIR: join(machine.directory, 'other'),
      GPU_OWNER_CONVENTIONS: 'none', // their marks would keep it from the GPU
    },
  });
  await until(() => machine.processes(0).length === 1);
  const resuming = setInterval(() => suspended.kill('SIGCONT'), 50); // the claim stops again with the other GPU
  expect(await finished(suspended)).toMatchObject({ code: 0, stdout: '1\n' });
  clearInterval(resuming);
  stranger.kill();
});
