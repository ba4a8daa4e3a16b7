// The driver goes away while claims wait for GPUs: it is being updated or reset.
import { expect, test } from 'vitest';
import { finished, launcher, type Machine, output } from '../support/machine.ts';
import { until } from '../support/time.ts';
import { type Jobs, jobTest } from './background.ts';

/** As simulator/scenarios/scenario.ts sets it. */
const OFF = 'error=all:9,cuda-init:100,cuda-context:100,cuda-alloc:100,cuda-free:100';

let machine: Machine;
let jobs: Jobs;
jobTest((opened) => {
  ({ machine, jobs } = opened);
}, 1);

test('claims that wait go on when the driver is back', async () => {
  const holder = machine.startCommand(['hold', '--placeholder', 'none']);
  await output(holder, /visibleDevices/);
  const first = await jobs.submit(['--', 'true']);
  await until(async () => (await jobs.find(first)).position === 1);
  const foreground = machine.start([launcher, 'run', '--', 'true']);
  const end = finished(foreground);
  await output(foreground, /2nd in the queue/);
  const follower = await jobs.submit(['--after-ok', String(first), '--', 'true']);
  machine.set(OFF);
  holder.stdin?.end();
  await until(async () => /loaded.*The wait goes on until the driver/.test(await jobs.logs(first)));
  expect((await jobs.find(first)).state).toBe('waiting');
  machine.set('error=all:0');
  for (const id of [first, follower]) expect(await jobs.wait(id)).toBe(0);
  expect(await end).toMatchObject({ code: 0 });
});

test('a job that starts while the driver is away waits for it, and a run doesn’t', async () => {
  const first = await jobs.submit(['--placeholder', 'none', '--', ...machine.untilFile('go')]);
  await jobs.reach(first, 'running');
  const follower = await jobs.submit(['--after', String(first), '--', 'true']);
  const limited = await jobs.submit(['--after', String(first), '--wait=1s', '--', 'true']);
  machine.set(OFF);
  machine.touch('go');
  await until(async () => (await jobs.logs(follower)).includes('The wait goes on'));
  expect((await machine.runCommand(['run', '--', 'true'])).code).toBe(69);
  expect(await jobs.wait(limited)).toBe(69);
  machine.set('error=all:0');
  expect(await jobs.wait(follower)).toBe(0);
});
