// When a worker holds GPUs, and when it lets them go.
import { existsSync, writeFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { CircuitBreaker } from '../../../lib/sweeps/worker/circuit-breaker.ts';
import { pause, python, until } from '../../support/machine.ts';
import { WorkerFixture } from './fixture.ts';

/** A manager that may add trials. @returns ends its search */
async function searching({ queue }: WorkerFixture): Promise<() => Promise<void>> {
  const search = { phase: 'search', trials: 9, metric: null, stopping: null };
  await queue.manage({ host: 'here', pid: process.pid });
  await queue.setSearch({ ...search, seed: null, left: {}, isOver: false });
  return () => queue.setSearch({ ...search, seed: null, left: {}, isOver: true });
}

test('no GPUs are claimed where there is nothing to do', async () => {
  const fixture = await WorkerFixture.open();
  const { ended, types } = fixture.work();
  expect((await ended).why).toBe('finished');
  expect(types()).toEqual(['stopped']);
});

test('a worker waits without GPUs where more tasks may come, and goes on', async () => {
  const fixture = await WorkerFixture.open();
  const end = await searching(fixture);
  const { event, ended, events } = fixture.work();
  expect(await event('idle')).toEqual({ type: 'idle', worker: null, why: 'active' });
  await fixture.add(['print', 'x']);
  await event('completed');
  await end();
  expect((await ended).why).toBe('finished');
  expect(events.filter(({ type }) => type === 'claimed')).toHaveLength(1);
});

test('a worker lets its GPU go while others work on the last tasks, and comes back if need be', async () => {
  const fixture = await WorkerFixture.open();
  const slow = ['touch', 'started', 'wait', 'go', 'exit', '1'];
  await fixture.add(slow, ['sleep', '0']);
  const first = fixture.work({}, { devices: [0] });
  await until(() => existsSync(fixture.path('started')));
  const second = fixture.work({ idleLimit: 150 }, { devices: [1] });
  await second.event('completed');
  expect(await second.event('idle')).toMatchObject({ worker: 'gpu1', why: 'active' });
  expect(await second.event('released')).toEqual({ type: 'released', worker: 'gpu1', why: 'idle' });
  // A placeholder takes a moment to end.
  await expect.poll(async () => (await fixture.machine.states())[1]).toBe('free');
  writeFileSync(fixture.path('go'), '');
  await Promise.all([first.ended, second.ended]);
  expect((await fixture.queue.counts()).failed).toBe(1);
});

test('a worker releases its GPU between tasks if others wait, and joins the queue again', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(...Array.from({ length: 3 }, (_, i) => ['touch', `started${i}`, 'wait', `go${i}`]));
  const { event, events, ended, worker } = fixture.work({}, { devices: [0] });
  await until(() => existsSync(fixture.path('started0')));
  const other = fixture.machine.startCommand([
    'run',
    '--devices',
    '0',
    '--',
    python,
    '-c',
    `
import os, time
open('${fixture.path('theirs')}', 'w').close()
while not os.path.exists('${fixture.path('enough')}'): time.sleep(0.01)`,
  ]);
  await until(async () =>
    (await fixture.machine.runCommand(['queue', '--json'])).stdout.includes('"position": 1'),
  );
  writeFileSync(fixture.path('go0'), '');
  expect(await event('released')).toMatchObject({ why: 'others' });
  await until(() => existsSync(fixture.path('theirs')));
  await until(() => events.some((each) => each.type === 'claiming' && each.waiting?.position === 1));
  expect(existsSync(fixture.path('started1'))).toBe(false);
  writeFileSync(fixture.path('enough'), '');
  await until(() => existsSync(fixture.path('started1')));
  for (const i of [1, 2]) writeFileSync(fixture.path(`go${i}`), '');
  expect((await ended).why).toBe('finished');
  expect(worker.name).toBe(null);
  await new Promise((resolve) => (other.exitCode === null ? other.once('exit', resolve) : resolve(null)));
});

test('waiting for a GPU ends when others have done the work, and when it is told to', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['touch', 'started', 'wait', 'go'], ['sleep', '0']);
  const first = fixture.work({}, { devices: [0] });
  await until(() => existsSync(fixture.path('started')));
  const [second, third] = [fixture.work({}, { devices: [0] }), fixture.work({}, { devices: [0] })];
  expect((await second.event('claiming', 2)).waiting).toMatchObject({ count: 1 });
  await third.event('claiming', 2);
  third.worker.drain();
  expect((await third.ended).why).toBe('drained');
  writeFileSync(fixture.path('go'), '');
  expect((await first.ended).why).toBe('finished');
  // Workers of the same process that stand in line aren't competitors.
  expect(first.types().filter((type) => type === 'claimed')).toHaveLength(1);
  expect((await second.ended).why).toBe('finished');
});

test('a GPU that can never be had is an error', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['sleep', '0']);
  const { ended } = fixture.work({}, { count: 9 });
  expect(await ended).toMatchObject({ why: 'error', error: { code: expect.stringMatching(/^ERR_/) } });
});

test('a worker of a paused queue claims no GPU until it is resumed', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['sleep', '0']);
  await fixture.queue.pause('person', 'lunch');
  const { event, ended } = fixture.work();
  expect(await event('idle')).toMatchObject({ why: 'paused', worker: null });
  await fixture.queue.resume();
  expect((await ended).why).toBe('finished');
});

test('a queue that fails for a while loses no result', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['result', '{"a": 1}']);
  const complete = fixture.queue.complete.bind(fixture.queue);
  let failures = 2;
  fixture.queue.complete = async (token, result) => {
    if (failures-- > 0) throw new Error('database or disk is full');
    return complete(token, result);
  };
  const { event, ended } = fixture.work();
  expect((await event('trouble')).message).toBe('database or disk is full (trying again in 0.25 s)');
  expect((await ended).why).toBe('finished');
  expect(await fixture.results()).toEqual([{ a: 1 }]);
});

test('an outcome that comes too late is rejected', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['sleep', '0']);
  fixture.queue.complete = async () => false;
  const { event, worker } = fixture.work();
  expect((await event('revoked')).why).toMatch(/too late/);
  worker.drain();
});

test('between tasks, others see that the GPU is taken', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['cuda', 'touch', 'started', 'wait', 'go']);
  const end = await searching(fixture);
  const { event, ended, worker } = fixture.work({}, { devices: [0] });
  await until(() => existsSync(fixture.path('started')));
  // The placeholder of the claim goes when the command has come.
  await until(() => fixture.machine.processes(0).length === 1);
  writeFileSync(fixture.path('go'), '');
  await event('completed');
  await until(() => fixture.machine.processes(0).length === 1);
  await pause(400); // it doesn't look for anybody while no command runs
  expect(fixture.machine.processes(0)).toHaveLength(1);
  await fixture.queue.enqueue([fixture.spec(7, ['cuda', 'touch', 'second', 'wait', 'go2'])]);
  await until(() => existsSync(fixture.path('second')));
  await until(() => fixture.machine.processes(0).length === 1);
  const lease = (await fixture.machine.status())[0].lease;
  expect(lease.command).toMatch(/^phase1_1_42: .*task.py cuda touch second/);
  writeFileSync(fixture.path('go2'), '');
  await end();
  await event('completed', 2);
  worker.drain();
  await ended;
  await until(() => fixture.machine.processes(0).length === 0);
});

test('failures are counted by task, and their common error is named', () => {
  const breaker = new CircuitBreaker();
  for (let i = 0; i < 5; i++) expect(breaker.taskFailed('a', 'exit code 1: same')).toBe(null);
  expect(breaker.taskFailed('b', 'exit code 1: same\ndetails')).toBe(null);
  expect(breaker.taskFailed('c', 'exit code 1: same')).toMatch(/^3 tasks .* all with: exit code 1: same$/);
  breaker.succeeded();
  expect(breaker.taskFailed('d', 'x')).toBe(null);
  expect(breaker.environmentFailed('lost')).toBe(null);
  expect(breaker.environmentFailed('lost')).toBe(null);
  expect(breaker.environmentFailed('busy')).toMatch(/the last with: busy$/);
});
