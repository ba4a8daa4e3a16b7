// safe-gpu has one lock for all GPUs, exclusive while it looks and allocates. Only the driver tells which GPUs are in use.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { TIMEOUTS } from '../../lib/platform/timeouts.ts';
import {
  finished,
  Machine,
  NOBODY,
  output,
  pause,
  processState,
  until,
  whyNotNobody,
} from '../support/machine.ts';
import { makeDirectory, placeOf, SAFE_GPU, startOriginal } from '../support/other-tools.ts';
import { soakTest, timeoutMs, withTimeouts } from '../support/time.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

const newer = () => join(makeDirectory(placeOf(machine, '/tmp/safe_gpu')), SAFE_GPU);

/** Where older versions have it; it counts if it is there. */
function older(): string {
  const path = join(makeDirectory(placeOf(machine, '/tmp')), SAFE_GPU);
  writeFileSync(path, '', { mode: 0o666 });
  return path;
}

describe.each([
  ['newer', newer],
  ['older', older],
])('a %s safe-gpu', (_, path) => {
  test('is waited for while it decides, and the wait can be interrupted', async () => {
    const theirs = startOriginal(machine, ['safe-gpu', path()]);
    await output(theirs, /locked/);
    const aborted = machine.startCommand(['run', '--', 'true']);
    const ours = machine.startCommand(['run', '--', 'true']);
    await pause(500);
    expect([aborted.exitCode, ours.exitCode]).toEqual([null, null]);
    aborted.kill('SIGINT');
    expect((await finished(aborted)).signal ?? aborted.exitCode).toBe('SIGINT');
    theirs.stdin?.end();
    // On a busy machine it may have waited for long enough to say so.
    const stderr = expect.stringMatching(/^(gpu-owner: warning: .* has locked .*; waiting for it.*\n)?$/);
    expect(await finished(ours)).toMatchObject({ code: 0, stderr });
  });

  test('waits from before our decision until our placeholder is there, and not longer', async () => {
    const file = path();
    for (const step of ['acquisition-lock', 'leased', 'environment']) {
      const ours = machine.startCommand(['run', '--', 'sleep', '60'], { env: { GPU_OWNER_STOP_AT: step } });
      await until(() => processState(ours.pid as number) === 'T');
      const theirs = startOriginal(machine, ['safe-gpu', file]);
      await output(theirs, /asking/);
      const locked = output(theirs, /locked/);
      expect(await Promise.race([locked, pause(300)])).toBeUndefined();
      ours.kill('SIGCONT');
      await locked;
      expect(machine.processes(0).length + machine.processes(1).length).toBe(1); // safe-gpu sees that one GPU is taken
      theirs.stdin?.end();
      ours.kill('SIGTERM');
      await finished(ours);
    }
  });

  test('doesn’t wait for a claim that fails or is killed', async () => {
    const file = path();
    const failed = await machine.runCommand(['run', '--no-wait', '--max-temperature', '1', '--', 'true']);
    expect(failed.code).toBe(75);
    const killed = machine.startCommand(['run', '--', 'true'], { env: { GPU_OWNER_STOP_AT: 'leased' } });
    await until(() => processState(killed.pid as number) === 'T');
    killed.kill('SIGKILL');
    await finished(killed);
    expect(await output(startOriginal(machine, ['safe-gpu', file]), /locked/)).toBe('locked');
  });
});

test('a waiting claim does not keep safe-gpu from its lock', async () => {
  const holder = machine.startCommand(['hold', '-n', '2']);
  await output(holder, /visibleDevices/);
  const waiting = machine.startCommand(['run', '--', 'true']);
  await output(waiting, /waiting for (?:a|\d+) GPU/);
  const started = performance.now();
  await output(startOriginal(machine, ['safe-gpu', newer(), '0.1']), /locked/);
  expect(performance.now() - started).toBeLessThan(10_000);
  holder.stdin?.end();
  expect((await finished(waiting)).code).toBe(0);
});

test('a safe-gpu that is stopped while it decides is waited for as long as any claimant, and named', async () => {
  const theirs = startOriginal(machine, ['safe-gpu', newer()]);
  await output(theirs, /locked/);
  theirs.kill('SIGSTOP');
  const started = performance.now();
  const { code, stderr } = await machine.runCommand(['run', '--', 'true']);
  const took = performance.now() - started;
  expect(code).toBe(0);
  expect(stderr).toMatch(
    new RegExp(
      `warning: a program that locks as safe-gpu does \\(.*, pid ${theirs.pid}, stopped: .*\\) has held .* for 2 s; this claim proceeds`,
    ),
  );
  expect(took).toBeGreaterThan(1_900);
  expect(took).toBeLessThan(10_000);
});

soakTest(
  'programs that hold both locks for ever are waited for once, for both together, and named at once',
  async () => {
    const limit = timeoutMs('safeGPU', 3_000);
    const theirs = [newer(), older()].map((path) => startOriginal(machine, ['safe-gpu', path]));
    for (const each of theirs) await output(each, /locked/);
    const started = performance.now();
    const ours = machine.startCommand(['run', '--', 'true'], { env: withTimeouts({ safeGPU: limit }) });
    const ended = finished(ours);
    const most = `${limit / 1_000} s`;
    await output(
      ours,
      new RegExp(`pid ${theirs[0]?.pid}.* has locked .*; waiting for it for at most ${most}`),
    );
    expect((await ended).stderr).toMatch(
      new RegExp(`pid ${theirs[1]?.pid}.* has held .*; this claim proceeds`),
    );
    const took = performance.now() - started;
    expect(took).toBeGreaterThanOrEqual(limit);
    if (limit === TIMEOUTS.safeGPU) expect(took).toBeLessThan(2 * limit - 5_000);
  },
);

test('the constructor waits as well, and ends on a signal that the program handles', async () => {
  const theirs = startOriginal(machine, ['safe-gpu', newer()]);
  await output(theirs, /locked/);
  const script = machine.script(`process.on('SIGTERM', () => {}); console.log('up');
    try { new GPUOwner(); } catch (error) { console.log(error.code); }`);
  const ours = machine.start([process.execPath, '--input-type=module', '-e', script]);
  await output(ours, /up/);
  await pause(200);
  const code = output(ours, /ERR_\w+/);
  ours.kill('SIGTERM');
  expect(await code).toBe('ERR_ABORTED');
});

const why = whyNotNobody();
test.skipIf(why !== null)(`two users share one lock${why ? ` (${why})` : ''}`, async () => {
  expect((await machine.runCommand(['run', '--', 'true'], { umask: '077' })).code).toBe(0);
  const theirs = startOriginal(machine, ['safe-gpu', newer()], { uid: NOBODY });
  await output(theirs, /locked/);
  const ours = machine.startCommand(['run', '--', 'true']);
  await pause(300);
  expect(ours.exitCode).toBeNull();
  theirs.stdin?.end();
  expect((await finished(ours)).code).toBe(0);
});
