// Processes that are suspended in the middle of a claim cost the others a delay, once, and no GPU.
import type { ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'vitest';
import { openWitness } from '../../bench/witness.js';
import { TRACE_POINTS } from '../../lib/claims/locks/effects.ts';
import { finished, Machine, output, pause, processState, python, until } from '../support/machine.ts';
import { childrenOf, sendSignal } from '../support/processes.ts';
import { quickest, WAIT_TIMEOUT_MS } from '../support/time.ts';
import { Waiters } from './waiters.ts';

const SOAK = process.env.GPU_OWNER_SOAK !== undefined;
const CLAIMANTS = 16;
const SUSPENDED = 6;
/** In s: when the first is suspended, within which time all are, and when they go on. */
const [FIRST, WITHIN, RESUMED] = SOAK ? [3, 3, 24] : [1, 1, 7];
/** Steps of a claim from its lock on; every sixth but in `npm run test:soak`. */
const STEPS = TRACE_POINTS.slice(TRACE_POINTS.indexOf('acquisition-lock')).filter(
  (_, i) => SOAK || i % 6 === 0,
);
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
/** How many the others make in a second of the last part; or a quarter of what they made before, on a machine that is busy. */
const CLAIMS = 62.5;

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

/** Prints how long each of so many claims has taken, in ms. */
const claimOften = (times: number, lockTimeout: string) => `
  for (let i = 0; i < ${times}; i++) {
    const started = performance.now();
    new GPUOwner({ placeholder: 'none', lockTimeout: '${lockTimeout}' }).release();
    console.log(Math.round(performance.now() - started));
  }`;
const CLAIM = `new GPUOwner({ placeholder: 'none' }).release(); console.log('claimed');`;

function startScript(machine: Machine, source: string, env = {}, prefix: string[] = []) {
  const words = [...prefix, process.execPath, '--input-type=module', '-e', machine.script(source)];
  return machine.start(words, { env });
}

async function expectOneDelay({ expect }: TestContext, machine: Machine): Promise<void> {
  const times = async (count: number, lockTimeout: string) => {
    const { code, stdout, stderr } = await finished(startScript(machine, claimOften(count, lockTimeout)));
    expect({ code, stderr }).toMatchObject({ code: 0 });
    return stdout.trim().split('\n').map(Number);
  };
  // A delay for each claim instead of one would make each as long as its timeout.
  const took = await times(30, '500ms');
  expect(took.toSorted((a, b) => a - b)[15], took.join()).toBeLessThan(500);
  expect(Math.max(...took), took.join()).toBeLessThan(8_000);
  // Another process knows of the one who is suspended without having waited itself.
  expect((await times(1, '60s'))[0]).toBeLessThan(30_000);
}

/** Has it go on, again and again: with another try it stops at the same step again. */
function resume(pid: number, outcome: Promise<unknown>): void {
  const resuming = setInterval(() => sendSignal(pid, 'SIGCONT'), 50);
  void outcome.finally(() => clearInterval(resuming));
}

describe.concurrent('a suspended claimant delays the others once, and goes on later', () => {
  test.for(STEPS)('if it is suspended at step %s', async (step, context) => {
    const { expect } = context;
    const machine = newMachine(context, 2);
    const suspended = startScript(machine, CLAIM, { GPU_OWNER_STOP_AT: step });
    await until(() => processState(suspended.pid as number) === 'T', WAIT_TIMEOUT_MS);
    await expectOneDelay(context, machine);
    const outcome = finished(suspended);
    resume(suspended.pid as number, outcome);
    expect(await outcome).toMatchObject({ code: 0, stdout: 'claimed\n' });
    expect(await machine.states()).toEqual(['free', 'free']);
  });

  // In a frozen group it isn't `T` in /proc.
  test.for(['cgroup v1', 'cgroup v2'] as const)('if it is frozen by %s', async (name, context) => {
    const { expect, onTestFinished, skip } = context;
    const group = freezer(name);
    if (group === null) return skip(`may not make a control group of ${name}`);
    const machine = newMachine(context, 2);
    const suspended = startScript(machine, CLAIM, { GPU_OWNER_STOP_AT: 'lease' });
    const outcome = finished(suspended);
    onTestFinished(async () => {
      group.thaw();
      suspended.kill('SIGKILL');
      await outcome;
      group.remove();
    });
    await until(() => processState(suspended.pid as number) === 'T', WAIT_TIMEOUT_MS);
    group.add(suspended.pid as number);
    suspended.kill('SIGCONT');
    await until(() => processState(suspended.pid as number) !== 'T');
    await expectOneDelay(context, machine);
    group.thaw();
    resume(suspended.pid as number, outcome);
    expect(await outcome).toMatchObject({ code: 0, stdout: 'claimed\n' });
  });

  test('if it is in another PID namespace', async (context) => {
    const { expect, skip } = context;
    const machine = newMachine(context, 2);
    const unshare = ['unshare', '--pid', '--fork', '--mount-proc'];
    if ((await machine.run([...unshare, 'true'])).code !== 0) return skip('may not make a PID namespace');
    const suspended = startScript(machine, CLAIM, { GPU_OWNER_STOP_AT: 'lease' }, [
      ...unshare,
      'sh',
      '-c',
      '"$@"; echo $?',
      'sh',
    ]);
    const claimant = () => childrenOf(suspended.pid as number).flatMap(childrenOf)[0] ?? -1;
    await until(() => processState(claimant()) === 'T', WAIT_TIMEOUT_MS);
    await expectOneDelay(context, machine);
    const outcome = finished(suspended);
    resume(claimant(), outcome);
    expect(await outcome).toMatchObject({ code: 0, stdout: 'claimed\n0\n' });
  });

  test('if it is suspended before it has written who it is', async (context) => {
    const machine = newMachine(context, 2);
    await machine.runCommand(['run', '--placeholder', 'none', '--', 'true']); // makes the file
    const lock = [join(machine.lockDirectory, 'acquisition.lock'), 'ofd', '0', '1'];
    await output(machine.start([python, fixture('locker.py'), ...lock]), /locked/);
    await expectOneDelay(context, machine);
  });

  test('and as the first waiter delays others by seconds only', async (context) => {
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
});

test('a claimant that was suspended after its last look looks again', async (context) => {
  const { expect } = context;
  const machine = newMachine(context, 2);
  const source = `const owner = new GPUOwner({ placeholder: 'none' }); console.log(owner.devices[0].index);`;
  const suspended = startScript(machine, source, { GPU_OWNER_STOP_AT: 'looked-again' });
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

// The epoch is a number in a file that everybody may write to.
test('an epoch that somebody scribbles on costs order and time, never a GPU', {
  retry: 0,
}, async (context) => {
  const { expect } = context;
  const machine = newMachine(context, 4);
  const witness = openWitness(machine.directory);
  await machine.runCommand(['run', '--placeholder', 'none', '--', 'true']); // makes the file
  const file = join(machine.lockDirectory, 'acquisition.lock');
  const scribbler = machine.start([python, fixture('scribbler.py'), file]);
  await output(scribbler, /scribbling/);
  const words = [process.execPath, fixture('restless.mjs'), witness.path];
  const claimants = Array.from({ length: 6 }, (_, i) => machine.start([...words, i % 2 ? 'now' : 'wait']));
  const outcomes = claimants.map((child) => finished(child));
  await until(() => claimsIn(witness.path).length >= 200, WAIT_TIMEOUT_MS);
  for (const child of claimants) child.stdin?.end();
  for (const { code, stderr } of await Promise.all(outcomes))
    expect({ code, stderr }).toMatchObject({ code: 0 });
  expect(scribbler.exitCode).toBeNull();
  scribbler.kill();
  witness.check();
});

/** Where cgroup v2 is, alone or beside v1. */
const UNIFIED = ['/sys/fs/cgroup', '/sys/fs/cgroup/unified'].find((path) =>
  existsSync(join(path, 'cgroup.controllers')),
);
/** Where they are, and how a group is frozen and thawed. */
const FREEZERS = {
  'cgroup v1': ['/sys/fs/cgroup/freezer', 'freezer.state', 'FROZEN', 'THAWED'],
  'cgroup v2': [UNIFIED ?? '/nowhere', 'cgroup.freeze', '1', '0'],
} as const;

/** A control group whose processes are frozen, or null where this process may not make one. */
function freezer(name: keyof typeof FREEZERS) {
  const [root, file, frozen, thawed] = FREEZERS[name];
  const group = join(root, `gpu-owner-test-${process.pid}`);
  try {
    mkdirSync(group);
    writeFileSync(join(group, file), frozen);
  } catch {
    return null;
  }
  return {
    add: (pid: number) => writeFileSync(join(group, 'cgroup.procs'), String(pid)),
    thaw: () => writeFileSync(join(group, file), thawed),
    remove: () => rmdirSync(group),
  };
}
