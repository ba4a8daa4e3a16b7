import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import {
  complete,
  fixture,
  isAlive,
  keeperOf,
  launch,
  Probe,
  python,
  restingKeeperOf,
  stubbornPids,
  until,
  workspace,
} from '../support/keeper.ts';
import { sendSignal } from '../support/processes.ts';

const probe = new Probe();

/** As long as a test may take: what ends sooner has not waited for SIGKILL. */
const NEVER = 600_000;
/** Long enough for stubborn.py to be ready on a busy machine, in ms: the time counts from the keeper's start. */
const LIMIT = 6_000;
const limit = (ms: number, grace = NEVER) => ['--time-limit', `${ms}:${ms}ms`, '--grace', String(grace)];
const OVER = /^gpu-owner: the time limit of \d+ms is over: .* SIGTERM, and after \d+ s SIGKILL\n$/;

/** A shell that says which signals it gets, and ends on SIGTERM with code 0. */
const POLITE =
  'trap "echo usr1" USR1; trap "echo term; exit 0" TERM; echo ready; while :; do sleep 0.02; done';

test('a command that ends by itself at the limit’s SIGTERM ends with 124, too', async () => {
  const ended = await complete({ options: limit(2_000), command: ['sh', '-c', POLITE] });
  expect(ended).toMatchObject({ code: 124, stdout: 'ready\nterm\n' });
});

test.each([
  [0, ''],
  [7, ''],
])('a limit changes nothing for a command that ends before, with code %i', async (code, stderr) => {
  const ended = await complete({ options: limit(NEVER), command: ['sh', '-c', `exit ${code}`] });
  expect(ended).toMatchObject({ code, stderr });
});

test('processes that ignore SIGTERM, are daemons or have stopped themselves are gone at the end', async () => {
  const { directory, leases } = workspace();
  const running = launch({
    leases,
    options: limit(LIMIT, 300),
    command: [python, fixture('stubborn.py'), directory],
  });
  const pids = await stubbornPids(directory);
  expect((await running.exited).code).toBe(124);
  expect(pids.filter(isAlive)).toEqual([]);
  expect(await probe.isHeld(leases[0] as string)).toBe(false);
  expect(running.stderr).toMatch(OVER);
});

test('a job that is suspended gets its SIGTERM at the limit', async () => {
  // SIGKILL would come too late for this test.
  const ended = await complete({
    options: limit(LIMIT / 2),
    command: ['sh', '-c', 'trap "echo term; exit 3" TERM; kill -STOP $$; echo resumed'],
  });
  expect(ended).toMatchObject({ code: 124, signal: null });
  expect(ended.stdout).toMatch(/^(resumed\n)?term\n$/);
});

test('orphans of a command end at the limit, and the command’s exit code stays its own', async () => {
  const { directory, leases } = workspace();
  const running = launch({
    leases,
    options: limit(LIMIT, 200),
    command: [python, fixture('stubborn.py'), directory, '5'],
  });
  const pids = await stubbornPids(directory);
  expect((await running.exited).code).toBe(5);
  await probe.free(leases[0] as string);
  expect(pids.filter(isAlive)).toEqual([]);
});

test('the signal before the limit reaches the command once, and the SIGTERM comes after it', async () => {
  const options = [...limit(3_000), '--notice', '10:1000'];
  const ended = await complete({ options, command: ['sh', '-c', POLITE] });
  expect(ended).toMatchObject({ code: 124, stdout: 'ready\nusr1\nterm\n' });
});

test('the limit is kept when the keeper is killed, and the notice isn’t repeated', async () => {
  const { leases } = workspace();
  const options = [...limit(4_000), '--notice', '10:2000'];
  const running = launch({ leases, options, command: ['sh', '-c', POLITE] });
  await running.printed(/usr1/);
  sendSignal(await keeperOf(running.pid), 'SIGKILL');
  expect((await running.exited).code).toBe(124);
  expect(running.stdout).toBe('ready\nusr1\nterm\n');
  expect(running.stderr).toMatch(/the keeper \(process \d+\) was killed; .*\n.* the time limit of 4000ms is/);
  expect(await probe.isHeld(leases[0] as string)).toBe(false);
});

test.each(['keeper', 'front'] as const)(
  'a signal to its %s gives a job another limit, if its user sends it',
  async (last) => {
    const { leases } = workspace();
    const options = [...limit(NEVER), '--notice', '10:3000', '--record', '{}'];
    const running = launch({ leases, options, command: ['sh', '-c', POLITE] });
    await running.printed(/ready/);
    const keeper = await restingKeeperOf(running.pid);
    const send = (...values: number[]) =>
      execFileSync(python, [
        fixture('queue_signal.py'),
        String(last === 'keeper' ? keeper : running.pid),
        '62',
        ...values.map(String),
      ]);
    send(1, 0); // by kill, not by sigqueue
    send(9); // the signal before it is 6 s after the start, which a busy machine may delay
    if (last === 'front') sendSignal(keeper, 'SIGKILL');
    expect((await running.exited).code).toBe(124);
    expect(running.stdout).toBe('ready\nusr1\nterm\n');
    expect(running.stderr).toMatch(/the time limit of 600000ms, which was extended, is over: /);
  },
);

test('a lease file’s record says when the limit ends the job', async () => {
  const { leases } = workspace();
  const options = [...limit(NEVER), '--record', '{}'];
  const running = launch({ leases, options, command: ['sleep', '600'] });
  const record = () => readFileSync(leases[0] as string, 'utf8');
  await until(() => record().includes('"pid"'), 'the record');
  const { until: end, ended } = JSON.parse(record());
  expect(ended).toBeNull();
  expect(Math.abs(end - Date.now() - NEVER)).toBeLessThan(60_000);
  running.kill('SIGTERM');
  expect((await running.exited).code).toBe(143);
});
