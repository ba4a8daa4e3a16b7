import { closeSync, openSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { isAlive, launch, Probe, pidIn, type Running, stat, until, workspace } from '../support/keeper.ts';
import { sendSignal, signalLiving } from '../support/processes.ts';
import { quickest, settled } from '../support/time.ts';

const probe = new Probe();

async function holding(
  launcher: string[] = [],
  options: string[] = [],
): Promise<{ running: Running; lease: string }> {
  const { leases } = workspace();
  const lease = leases[0] as string;
  const running = launch({ mode: 'hold', leases, launcher, options: ['--record', '{}', ...options] });
  await until(() => readFileSync(lease, 'utf8').includes(`"pid": ${running.pid}`), 'the record');
  return { running, lease };
}

test('a signal that the caller ignored (nohup) doesn’t end hold', async () => {
  const { running, lease } = await holding([], ['--ignore-signals', '1']);
  running.kill('SIGHUP');
  expect(await probe.isHeldFor(lease, 60)).toBe(true);
  running.child.stdin?.end();
  expect((await running.exited).code).toBe(0);
});

test('the holder’s placeholder ends with it', async () => {
  const { directory } = workspace();
  const { running } = await holding(['--placeholder', `${directory}/placeholder`]);
  const placeholder = await pidIn(directory, 'placeholder');
  running.child.stdin?.end();
  expect((await running.exited).code).toBe(0);
  expect(isAlive(placeholder)).toBe(false);
});

test('a placeholder that hangs delays the end by a second at most, the lease not at all', async () => {
  const end = async (wait: (running: Running, lease: string) => Promise<unknown>) => {
    const { directory } = workspace();
    const { running, lease } = await holding(['--placeholder', `${directory}/placeholder`]);
    const placeholder = await pidIn(directory, 'placeholder');
    signalLiving(placeholder, 'SIGSTOP');
    const start = performance.now();
    running.child.stdin?.end();
    await wait(running, lease);
    const took = performance.now() - start;
    expect((await running.exited).code).toBe(0);
    sendSignal(placeholder, 'SIGKILL');
    return took;
  };
  expect(await quickest(700, () => end((_, lease) => probe.free(lease)))).toBeLessThan(700);
  expect(await quickest(2_500, () => end(({ exited }) => exited))).toBeLessThan(2_500);
});

test('hold doesn’t wake up while it waits', async () => {
  const { running } = await holding();
  const ticks = () => stat(running.pid)?.ticks;
  const before = await settled(ticks);
  await sleep(200);
  expect(ticks()).toEqual(before);
  running.child.stdin?.end();
  await running.exited;
});

test('the answer is written when a signal already ends it in good order', async () => {
  const { running, lease } = await holding([], ['--answer', '{"long":"'.padEnd(70_000, 'x')]);
  await running.printed(/^\{"long":"x+\n/);
  running.kill('SIGTERM');
  expect(await running.exited).toEqual({ code: 143, signal: null });
  expect(JSON.parse(readFileSync(lease, 'utf8')).ended).toBeGreaterThan(0);
});

test.each([
  ['/dev/full', { code: 74, signal: null }, /standard output can't be written: No space left on device/],
  ['a pipe that nobody reads', { code: 0, signal: null }, /^$/],
] as const)('an answer that nobody can read ends it: %s', async (where, outcome, message) => {
  const { leases } = workspace();
  const output = where === '/dev/full' ? openSync(where, 'w') : 'pipe';
  const options = ['--record', '{}', '--answer', '{}'];
  const running = launch({ mode: 'hold', leases, options, stdio: ['pipe', output, 'pipe'] });
  if (output === 'pipe') running.child.stdout?.destroy();
  else closeSync(output);
  const closed = new Promise((resolve) => running.child.on('close', resolve));
  expect(await running.exited).toEqual(outcome);
  await closed;
  expect(running.stderr).toMatch(message);
  expect(JSON.parse(readFileSync(leases[0] as string, 'utf8')).ended).toBeGreaterThan(0);
});
