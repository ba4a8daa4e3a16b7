import { openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { bootMilliseconds } from '../../lib/platform/index.ts';
import { fixture, isAlive, pidIn, python, until } from '../support/keeper.ts';
import { signalAll } from '../support/machine.ts';
import { childrenOf, processState, sendSignal, signalLiving } from '../support/processes.ts';
import { pause } from '../support/time.ts';
import { chain, script, task } from './supervising.ts';

test('the exit code of a command that ends by itself is reported', async () => {
  const { ended, log, lease } = task(
    script('import sys; print("out"); print("err", file=sys.stderr); sys.exit(3)'),
  );
  expect(await ended).toEqual({ kind: 'exited', code: 3 });
  expect(log().split('\n').sort()).toEqual(['', 'err', 'out']);
  const record = JSON.parse(readFileSync(lease, 'utf8'));
  expect(record).toMatchObject({ pid: process.pid, ended: null, command: 'a test' });
});

test('how a command ended is reported also if its deadline is moved when its keeper has gone', async () => {
  const before = childrenOf(process.pid);
  const supervised = task(['true']);
  const watchdogs = childrenOf(process.pid).filter((pid) => !before.includes(pid));
  // Nothing is read meanwhile.
  while (watchdogs.some((pid) => processState(pid) !== 'Z'));
  supervised.moveDeadline(bootMilliseconds() + 60_000);
  expect([watchdogs.length, await supervised.ended]).toEqual([1, { kind: 'exited', code: 0 }]);
});

test('the signal of a killed command is reported', async () => {
  const { ended } = task(script('import os; os.kill(os.getpid(), 9)'));
  expect(await ended).toEqual({ kind: 'killed', signal: 'SIGKILL' });
});

test('the reason why a command can’t start is reported', async () => {
  expect(await task(['pyhton']).ended).toEqual({ kind: 'not-started', errno: 2, text: 'not found' });
  expect(await task(['true', 'x'.repeat(200_000)]).ended).toMatchObject({
    kind: 'not-started',
    errno: 7,
    text: expect.stringMatching(/^its arguments and environment are too long/),
  });
  expect(await task(['/etc/passwd']).ended).toMatchObject({ kind: 'not-started', errno: 13 });
  expect(await task(['true'], { cwd: '/nowhere' }).ended).toMatchObject({
    kind: 'not-started',
    text: expect.stringContaining('directory'),
  });
});

test('a command has the environment, directory and descriptors that were asked for, and a session of its own', async () => {
  const shared = openSync('/dev/null', 'r');
  const { ended, log } = task([python, fixture('inherited.py')], {
    env: { PATH: process.env.PATH, A: 'é=1', LC_ALL: 'C.UTF-8', UNSET: undefined },
    cwd: '/usr',
    descriptors: [shared],
  });
  expect(await ended).toEqual({ kind: 'exited', code: 0 });
  const [env, place, descriptors, signals] = log().split('\n');
  expect(env).toContain("('A', 'é=1')");
  expect(env).not.toContain('UNSET');
  expect(place).toBe("/usr '' True");
  expect(JSON.parse(descriptors as string)).toEqual([201, 202]);
  expect(signals).toBe('[] True');
});

test('a lock that a command keeps for others is no lease to its keeper', async () => {
  const { ended } = task(['sleep', '60'], { descriptors: [openSync('/dev/null', 'r')] });
  const { keeper, command } = await chain();
  const words = readFileSync(`/proc/${keeper}/cmdline`, 'utf8').split('\0');
  expect(words).not.toContain('--shared');
  expect(words[words.indexOf('--inherited') + 1]).toBe('202');
  sendSignal(command, 'SIGKILL');
  await ended;
});

test('many commands run at a time', async () => {
  const all = Array.from({ length: 12 }, (_, i) => task(['sh', '-c', `exit ${i}`]));
  const outcomes = await Promise.all(all.map(({ ended }) => ended));
  expect(outcomes).toEqual(all.map((_, code) => ({ kind: 'exited', code })));
});

test('terminate lets a command end in order, and kills it after the grace period', async () => {
  const polite = task([python, fixture('polite.py')], { grace: 60_000 });
  await until(() => polite.log().includes('ready'), 'its start');
  polite.terminate(60_000);
  expect(await polite.ended).toEqual({ kind: 'exited', code: 7 });
  expect(polite.log()).toContain('saved');

  const deaf = task((directory) => [python, fixture('job.py'), directory, 'stubborn_daemon', '--stay']);
  const child = await pidIn(deaf.directory, 'stubborn_daemon-child');
  deaf.terminate(60_000);
  deaf.terminate(50);
  expect(await deaf.ended).toEqual({ kind: 'killed', signal: 'SIGKILL' });
  expect(isAlive(child)).toBe(false);
});

test('terminate works right after the start, and after the end', async () => {
  const early = task(['sleep', '60']);
  early.terminate(1000);
  expect((await early.ended).kind).toMatch(/killed|not-started/);
  early.terminate(0);
});

test('the event loop is not blocked', async () => {
  const longestPause = async () => {
    let longest = 0;
    let last = performance.now();
    const timer = setInterval(() => {
      longest = Math.max(longest, performance.now() - last);
      last = performance.now();
    }, 1);
    await Promise.all(Array.from({ length: 5 }, () => task(['sleep', '1']).ended));
    clearInterval(timer);
    return longest;
  };
  // A wait for the end of a task would block each time, a busy machine now and then.
  let shortest = Number.POSITIVE_INFINITY;
  for (let i = 0; i < 20 && shortest >= 500; i++) shortest = Math.min(shortest, await longestPause());
  expect(shortest).toBeLessThan(500);
});

test('no zombies and no descriptors stay', async () => {
  const open = () => readFileSync('/proc/self/status', 'utf8').match(/FDSize:\t(\d+)/)?.[1];
  const before = open();
  for (let i = 0; i < 20; i++) await task(['true']).ended;
  expect(open()).toBe(before);
  const children = readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8').trim().split(' ');
  expect(children.filter((pid) => pid && !isAlive(Number(pid)))).toEqual([]);
});

const ways = ['fork', 'popen', 'new_session', 'stubborn_daemon', 'respawning'] as const;
/** Each way of leaving processes behind where the keeper is killed, and the hardest where others are. */
const KILLS = [
  ...ways.map((way) => [['keeper'], way] as const),
  ...[
    ['watchdog', 'keeper'] as const,
    ['keeper', 'watchdog'] as const,
    ['watchdog', 'keeper', 'command'] as const,
  ].map((killed) => [killed, 'respawning'] as const),
];

test.each(KILLS.map(([killed, way]) => [killed.join(', '), way, killed] as const))(
  'kill -9 of %s leaves nothing of the command (%s)',
  async (_, way, killed) => {
    const one = task((directory) => [python, fixture('job.py'), directory, way, '--stay']);
    const child = await pidIn(one.directory, `${way}-child`);
    const command = await pidIn(one.directory, `${way}-command`);
    const all = await chain();
    signalAll(
      killed.map((victim) => all[victim]),
      'SIGKILL',
    );
    expect(await one.ended).toMatchObject({
      kind: killed.includes('command' as never) ? expect.anything() : 'lost',
    });
    expect([child, command, all.keeper, all.watchdog].map(isAlive)).toEqual([false, false, false, false]);
  },
);

test('after kill -9 of the watchdog, the command goes on, and its end is reported', async () => {
  const one = task((directory) => [python, fixture('job.py'), directory, 'popen', '--stay']);
  const child = await pidIn(one.directory, 'popen-child');
  await pidIn(one.directory, 'popen-staying');
  const all = await chain();
  sendSignal(all.watchdog, 'SIGKILL');
  await pause(60);
  expect([child, all.keeper, all.command].map(isAlive)).toEqual([true, true, true]);
  // Another task that loses both of its processes meanwhile doesn't cost this one its keeper.
  const two = task(['sleep', '60']);
  const other = await chain();
  sendSignal(other.keeper, 'SIGKILL');
  sendSignal(other.watchdog, 'SIGKILL');
  expect((await two.ended).kind).toBe('lost');
  expect([child, all.keeper, all.command].map(isAlive)).toEqual([true, true, true]);
  signalLiving(all.command, 'SIGTERM');
  expect(await one.ended).toEqual({ kind: 'killed', signal: 'SIGTERM' });
  expect([child, all.keeper].map(isAlive)).toEqual([false, false]);
});

test.each(['watchdog', 'keeper', 'command'] as const)(
  'SIGSTOP of the %s does not stop the worker',
  async (victim) => {
    const one = task((directory) => [python, fixture('job.py'), directory, 'fork', '--stay']);
    const child = await pidIn(one.directory, 'fork-child');
    await pidIn(one.directory, 'fork-staying');
    const all = await chain();
    signalLiving(all[victim], 'SIGSTOP');
    one.terminate(300);
    expect(await one.ended).toMatchObject({ kind: 'killed' });
    expect([child, all.keeper, all.watchdog].map(isAlive)).toEqual([false, false, false]);
  },
);

test('a watchdog and a keeper that are stopped go on within seconds', async () => {
  const one = task((directory) => [
    'sh',
    '-c',
    'until [ -e "$0" ]; do sleep 0.05; done',
    join(directory, 'go'),
  ]);
  const all = await chain();
  signalLiving(all.watchdog, 'SIGSTOP');
  signalLiving(all.keeper, 'SIGSTOP');
  writeFileSync(join(one.directory, 'go'), '');
  expect(await one.ended).toEqual({ kind: 'exited', code: 0 });
});

test('a command ends at its deadline, unless that is moved, and one that comes too late never runs', async () => {
  const its = task(['sleep', '60'], { deadline: { at: bootMilliseconds() + 60_000, grace: 100 } });
  await chain();
  its.moveDeadline(bootMilliseconds());
  expect(await its.ended).toEqual({ kind: 'killed', signal: 'SIGTERM' });
  expect(its.hasExpired).toBe(true);
  const late = task(['echo', 'late'], { deadline: { at: bootMilliseconds() - 1, grace: 100 } });
  expect(await late.ended).toMatchObject({ kind: 'not-started' });
  expect([late.hasExpired, late.log()]).toEqual([true, '']);
});
