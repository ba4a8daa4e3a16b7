import { existsSync, readdirSync, writeFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { Literal } from '../../../lib/sweeps/task/index.ts';
import { childrenOf, isAlive } from '../../support/keeper.ts';
import { python, signalAll, until } from '../../support/machine.ts';
import { WorkerFixture } from './fixture.ts';

test('a worker runs a sweep from start to end', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(
    ['print', 'hello', 'result', '{"accuracy": 0.5, "steps": 1.0}'],
    ['print', 'no result'],
    ['cuda', 'result', '{"loss": NaN, "best": -Infinity}'],
  );
  const { ended, events, types } = fixture.work();
  expect(await ended).toEqual({ why: 'finished', message: null, error: null });
  expect(types()).toEqual([
    'claiming',
    'claimed',
    ...Array.from({ length: 3 }, () => ['assigned', 'completed']).flat(),
    'released',
    'stopped',
  ]);
  expect(events[1]).toMatchObject({ worker: 'gpu0', gpus: [{ index: 0 }] });
  expect(events[2]).toMatchObject({ start: 1, log: fixture.path('results/deep/worker_gpu0.log') });
  const [first, second, third] = await fixture.results();
  expect(first).toEqual({ accuracy: 0.5, steps: new Literal(1, '1.0') });
  expect(second).toEqual({});
  expect(third?.loss).toEqual(new Literal(Number.NaN, 'NaN').data);
  expect(fixture.log()).toMatch(
    /^==> [-\d]+ [:\d]+ phase1_0_42 on gpu0 \(.+\): .*task.py print hello.*\nhello\n<== .*phase1_0_42: exit code 0 after/,
  );
  expect(readdirSync(fixture.path('.gpu-owner/attempts'))).toEqual([]);
  // A placeholder takes a moment to end.
  await expect.poll(() => fixture.machine.states()).toEqual(['free', 'free', 'free']);
});

test('the queue knows where the output of an attempt is', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['print', 'one'], ['print', 'two']);
  await fixture.work().ended;
  const log = fixture.log();
  for (const [name, text] of [
    ['phase1_0_42', 'one\n'],
    ['phase1_1_42', 'two\n'],
  ] as const) {
    const [attempt] = await fixture.attempts(name);
    const { from, to, path } = attempt?.log ?? { from: 0, to: 0, path: '' };
    expect(path).toBe(fixture.path('results/deep/worker_gpu0.log'));
    expect(log.slice(from, to ?? undefined)).toBe(text);
  }
});

test('a command finds its task, GPUs and directories', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.queue.enqueue([
    fixture.spec(0, ['env'], { width: new Literal(1, '1.0'), on: new Literal(true, 'yes') }),
  ]);
  await fixture.work({}, { devices: [1] }).ended;
  const line = fixture.log('gpu1').split('\n')[1] as string;
  const given = JSON.parse(line);
  expect(given).toMatchObject({
    CUDA_VISIBLE_DEVICES: expect.stringMatching(/^GPU-/),
    GPU_OWNER_JOB: expect.stringMatching(/^\d+$/),
    PYTHONUNBUFFERED: '1',
    MASTER_ADDR: '127.0.0.1',
    MASTER_PORT: expect.stringMatching(/^\d+$/),
    cwd: fixture.path('.').replace(/\/$/, ''),
  });
  expect(given.task).toContain('"width":1.0,"on":true');
  expect(JSON.parse(given.task)).toMatchObject({
    id: expect.stringMatching(/^t-/),
    name: 'phase1_0_42',
    phase: 'phase1',
    seed: 42,
    output_dir: 'results/deep',
    start: 1,
    worker: 'gpu1',
  });
});

test('a result that can’t be read is kept, and not tried again', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['result', '{"a": 1']);
  const { ended, event } = fixture.work();
  await ended;
  const { error, state } = await event('failed');
  expect(state).toBe('failed');
  const path = /not JSON.*kept in (.*)$/.exec(error)?.[1] as string;
  expect(existsSync(path)).toBe(true);
});

test('a failing task is started three times, and its error has the end of the log', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['print', 'before', 'print', '\x1b[31mBad\x1b[0m thing', 'exit', '3']);
  const { ended, events } = fixture.work();
  expect((await ended).why).toBe('finished');
  const failures = events.filter((event) => event.type === 'failed');
  expect(failures.map(({ state }) => state)).toEqual(['pending', 'pending', 'failed']);
  expect(failures[0]?.error).toBe('exit code 3: Bad thing\nThe log ends with:\n  before\n  Bad thing');
  expect(fixture.log()).toContain('(start 3)');
});

test('a killed command fails its task', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['kill']);
  const { event, worker } = fixture.work();
  expect((await event('failed')).error).toBe('killed by SIGKILL');
  worker.drain();
});

test('three different tasks that fail stop the worker; successes in between don’t count', async () => {
  const fixture = await WorkerFixture.open();
  const bad = ['print', 'no module', 'exit', '1'];
  await fixture.add(bad, ['print', 'fine'], bad, bad, ['sleep', '0'], bad, bad, bad, bad);
  const { ended, events } = fixture.work();
  const end = await ended;
  expect(end.why).toBe('failures');
  expect(end.message).toMatch(/^3 tasks failed in a row, all with: exit code 1: no module/);
  expect(events.filter(({ type }) => type === 'failed')).toHaveLength(6);
  expect((await fixture.queue.counts()).active).toBe(0);
});

test('exit code 75 doesn’t count; three times in a row stop the worker', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['exit', '75'], ['exit', '75'], ['exit', '75']);
  const { ended, events } = fixture.work();
  const end = await ended;
  expect(end).toMatchObject({ why: 'environment', message: expect.stringContaining('exit code 75') });
  expect(events.filter(({ type }) => type === 'given-back')).toHaveLength(3);
  expect((await fixture.rows()).map(({ state, starts }) => [state, starts])).toEqual(
    Array.from({ length: 3 }, () => ['pending', 0]),
  );
});

test('a command that can’t start fails its task', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add({ words: ['pyhton', 'a.py'] });
  await fixture.add(['exit', '0']);
  const { ended, events } = fixture.work();
  expect((await ended).why).toBe('finished');
  expect(events.filter(({ type }) => type === 'failed')).toEqual([
    expect.objectContaining({ error: "pyhton can't be started: not found", state: 'failed' }),
  ]);
  expect((await fixture.rows()).map(({ state, starts }) => [state, starts])).toEqual([
    ['failed', 1],
    ['completed', 1],
  ]);
});

test('a command that a shell doesn’t find, or may not execute, fails its task at once', async () => {
  const fixture = await WorkerFixture.open();
  writeFileSync(fixture.path('plain'), '');
  await fixture.add({ shell: 'pyhton a.py' });
  await fixture.add({ shell: './plain' });
  const { ended, events } = fixture.work();
  expect((await ended).why).toBe('finished');
  const errors = events.flatMap((event) => (event.type === 'failed' ? [event.error] : []));
  expect(errors.map((error) => /^exit code \d+/.exec(error)?.[0])).toEqual([
    'exit code 127',
    'exit code 126',
  ]);
  expect((await fixture.rows()).map(({ state, starts }) => [state, starts])).toEqual([
    ['failed', 1],
    ['failed', 1],
  ]);
});

test('an output directory that can’t be made is an error of the environment', async () => {
  const fixture = await WorkerFixture.open();
  writeFileSync(fixture.path('results'), 'a file');
  await fixture.add(['print', 'x']);
  const { event } = fixture.work();
  expect((await event('given-back')).why).toMatch(/results.* can't be written: not a directory/i);
});

test('a task is not to blame for a failure while a foreign process is on its GPU', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['touch', 'started', 'wait', 'go', 'exit', '1']);
  const { event, ended, worker } = fixture.work({}, { devices: [0] });
  await until(() => existsSync(fixture.path('started')));
  const stranger = fixture.machine.start([
    python,
    '-c',
    `
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1]); cuda.cuInit(0); context = ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
import time; time.sleep(60)`,
    `${process.cwd()}/build/Release/simulator/libcuda.so.1`,
  ]);
  await until(() => fixture.machine.processes(0).includes(stranger.pid as number));
  writeFileSync(fixture.path('go'), '');
  const { why } = await event('given-back');
  expect(why).toMatch(/^python3.* \(pid \d+.*uses the claimed GPU 0 without a claim.*; exit code 1/);
  await event('released');
  worker.stop();
  expect((await ended).why).toBe('stopped');
  stranger.kill('SIGKILL');
});

test('a task is not to blame for a GPU that is lost, and goes on elsewhere', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['touch', 'started', 'wait', 'go', 'exit', '1']);
  const { event, ended } = fixture.work();
  await until(() => existsSync(fixture.path('started')));
  fixture.machine.set('gpu=0', 'lost=on');
  writeFileSync(fixture.path('go'), '');
  expect((await event('given-back')).why).toMatch(/^GPU 0 has failed: /);
  expect((await event('claimed', 2)).worker).toBe('gpu1');
  await ended;
  expect((await fixture.rows())[0]?.starts).toBe(3);
  fixture.machine.set('gpu=0', 'lost=off');
});

test.each(['fork', 'daemon'])(
  'a process that a command leaves behind ends before the next task: %s',
  async (way) => {
    const fixture = await WorkerFixture.open();
    await fixture.add(['cuda', way], ['cuda', 'print', 'second']);
    const { ended, event } = fixture.work();
    await ended;
    expect((await event('left-behind')).count).toBe(1);
    expect(fixture.log()).toContain('ended 1 left behind');
    await until(() => fixture.machine.processes(0).filter(isAlive).length === 0);
  },
);

test('drain finishes the current task', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['touch', 'started', 'wait', 'go', 'result', '{"a": 1}'], ['print', 'next']);
  const { worker, ended } = fixture.work();
  await until(() => existsSync(fixture.path('started')));
  worker.drain();
  writeFileSync(fixture.path('go'), '');
  expect((await ended).why).toBe('drained');
  expect(await fixture.results()).toEqual([{ a: 1 }]);
  expect(await fixture.queue.counts()).toMatchObject({ pending: 1, active: 0, completed: 1 });
});

test.each(['polite', 'deaf'])(
  'a task that drain with a limit, or stop, ends is given back and doesn’t count (%s)',
  async (manners) => {
    for (const way of ['drain', 'stop'] as const) {
      const fixture = await WorkerFixture.open();
      await fixture.add([manners, 'fork', 'touch', 'started', 'sleep', '600']);
      const { worker, ended, event } = fixture.work({ grace: 100 });
      await until(() => existsSync(fixture.path('started')));
      worker[way]();
      if (way === 'drain' && manners === 'deaf') worker.stop(); // ten seconds are too long for this test
      expect((await ended).why).toBe(way === 'drain' && manners === 'polite' ? 'drained' : 'stopped');
      expect(await event('given-back')).toMatchObject({ delay: 0 });
      expect((await fixture.rows())[0]).toMatchObject({ state: 'pending', starts: 0 });
      await expect.poll(() => fixture.machine.states()).toEqual(['free', 'free', 'free']);
    }
  },
);

test.each(['polite', 'deaf', 'exit 1'])(
  'a task is given back and doesn’t count after SIGTERM to all processes, as batch systems send it (%s)',
  async (manners) => {
    const fixture = await WorkerFixture.open();
    const words = manners === 'exit 1' ? ['impolite'] : [manners];
    await fixture.add([...words, 'touch', 'started', 'sleep', '600']);
    const { worker, ended, event } = fixture.work({ endingGrace: 200 });
    await until(() => existsSync(fixture.path('started')));
    const family = (pid: number): number[] => [pid, ...childrenOf(pid).flatMap(family)];
    const all = childrenOf(process.pid).flatMap(family);
    expect(all.length).toBeGreaterThan(2); // the watchdog, the keeper, the command
    worker.drain();
    signalAll(all, 'SIGTERM');
    expect((await ended).why).toBe('drained');
    expect((await event('given-back')).why).toMatch(/^another process sent SIGTERM to all its processes/);
    expect((await fixture.rows())[0]).toMatchObject({ state: 'pending', starts: 0 });
  },
);

test('the command of a cancelled task is killed, and nothing is reported', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['polite', 'touch', 'started', 'sleep', '600'], ['print', 'next']);
  const { ended, event, events } = fixture.work();
  await until(() => existsSync(fixture.path('started')));
  await fixture.queue.cancel({ ids: ['phase1_0_42'] });
  await event('revoked');
  expect((await ended).why).toBe('finished');
  expect(events.filter(({ type }) => type === 'completed')).toHaveLength(1);
  expect((await fixture.rows()).map(({ state }) => state)).toEqual(['cancelled', 'completed']);
});

test('a task that is cancelled while it runs, and retried, runs again in the same process', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['polite', 'touch', 'started', 'sleep', '600'], ['sleep', '0.1']);
  const { ended, event, events } = fixture.work();
  await until(() => existsSync(fixture.path('started')));
  await fixture.queue.cancel({ ids: ['phase1_0_42'] });
  await fixture.queue.retry({ ids: ['phase1_0_42'] });
  await event('revoked');
  await until(
    () => events.filter((each) => each.type === 'assigned' && each.task.name === 'phase1_0_42').length === 2,
  );
  await fixture.queue.cancel('all');
  expect((await ended).why).toBe('finished');
});

test('two workers in one process have different GPUs', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(...Array.from({ length: 6 }, (_, i) => ['cuda', 'touch', `started${i}`, 'wait', 'go']));
  const two = [fixture.work(), fixture.work()];
  await until(() => [0, 1].every((i) => existsSync(fixture.path(`started${i}`))));
  writeFileSync(fixture.path('go'), '');
  const ends = await Promise.all(two.map(({ ended }) => ended));
  expect(ends.map(({ why }) => why)).toEqual(['finished', 'finished']);
  const names = two.map(({ events }) => events.find(({ type }) => type === 'claimed'));
  expect(new Set(names.map((event) => (event as { worker: string }).worker))).toEqual(
    new Set(['gpu0', 'gpu1']),
  );
  expect(process.env.CUDA_VISIBLE_DEVICES).toBeUndefined();
  expect(await fixture.queue.counts()).toMatchObject({ completed: 6 });
});

test('a task can have several GPUs', async () => {
  const fixture = await WorkerFixture.open();
  await fixture.add(['cuda']);
  const { ended } = fixture.work({}, { count: 2 });
  await ended;
  expect(fixture.log('gpu0-1')).toMatch(/using 2 GPU-.*,GPU-/);
});
