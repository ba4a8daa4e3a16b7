import { execFileSync } from 'node:child_process';
import { readFileSync, statSync } from 'node:fs';
import { uptime } from 'node:os';
import { expect, test } from 'vitest';
import { complete, fixture, keeperOf, launch, pidIn, python, until, workspace } from '../support/keeper.ts';
import { sendSignal } from '../support/processes.ts';

interface Record {
  user: string;
  pid: number;
  keeper: number;
  survivors: number;
  ended: number | null;
}

function read(file: string): Record {
  const text = readFileSync(file, 'utf8');
  expect(Buffer.byteLength(text)).toBe(4096);
  expect(text.endsWith('\n')).toBe(true);
  return JSON.parse(text);
}

test('the record says who holds the lease, from the command’s first moment to the end', async () => {
  const { directory, leases } = workspace(2);
  const [first, second] = leases as [string, string];
  const command = [python, fixture('job.py'), directory, 'fork', '--stay'];
  const running = launch({ leases, options: ['--record', '{"user": "alice", "list": [1, {}]} '], command });
  const pid = await pidIn(directory, 'fork-command');
  const child = await pidIn(directory, 'fork-child');
  const keeper = await keeperOf(running.pid);
  expect(read(first)).toEqual({ user: 'alice', list: [1, {}], pid, keeper, survivors: 0, ended: null });
  expect(read(second)).toEqual(read(first));

  sendSignal(pid, 'SIGKILL');
  await running.exited;
  expect(read(first)).toMatchObject({ user: 'alice', pid: child, keeper, survivors: 1, ended: null });

  sendSignal(child, 'SIGKILL');
  await until(() => read(first).ended !== null, 'the end in the record');
  const { ended, survivors } = read(second);
  expect(survivors).toBe(0);
  expect(Math.abs((ended as number) - uptime() * 1000)).toBeLessThan(5000);
});

test('the command finds its own PID in the record', async () => {
  const { leases } = workspace();
  const script = 'import json, os; print(json.load(os.fdopen(200))["pid"] == os.getpid())';
  const ended = await complete({ leases, options: ['--record', '{}'], command: [python, '-c', script] });
  expect(ended).toMatchObject({ code: 0, stdout: 'True\n' });
});

test('the record counts survivors down', async () => {
  const { directory, leases } = workspace();
  const script = `${['fork', 'new_session', 'popen'].map((way) => `${python} ${fixture('job.py')} ${directory} ${way}`).join('; ')}; exit 1`;
  const running = launch({ leases, options: ['--record', '{}'], command: ['sh', '-c', script] });
  expect((await running.exited).code).toBe(1);
  const lease = leases[0] as string;
  let left = 3;
  for (const way of ['new_session', 'fork', 'popen']) {
    expect(read(lease).survivors).toBe(left--);
    sendSignal(await pidIn(directory, `${way}-child`), 'SIGKILL');
    await until(() => read(lease).survivors === left, `${left} survivors`);
  }
  await until(() => read(lease).ended !== null, 'the end in the record');
});

test('a front that took over has its PID in the record', async () => {
  const { directory, leases } = workspace();
  const command = [python, fixture('job.py'), directory, 'fork', '--stay'];
  const running = launch({ leases, options: ['--record', '{}'], command });
  const pid = await pidIn(directory, 'fork-command');
  sendSignal(await keeperOf(running.pid), 'SIGKILL');
  await until(() => read(leases[0] as string).keeper === running.pid, 'the new keeper');
  expect(read(leases[0] as string)).toMatchObject({ pid, survivors: 0, ended: null });
  sendSignal(await pidIn(directory, 'fork-child'), 'SIGKILL');
  running.kill('SIGTERM');
  expect((await running.exited).code).toBe(143);
  expect(read(leases[0] as string).ended).not.toBeNull();
});

test.each(['', 'null', '{"a"', `{"text":"${'x'.repeat(4096)}"}`])(
  'a record that is no object, or too long, ends the keeper with 70',
  async (record) => {
    const { leases } = workspace();
    const before = readFileSync(leases[0] as string, 'utf8');
    const ended = await complete({ leases, options: ['--record', record], command: ['true'] });
    expect(ended.code).toBe(70);
    expect(ended.stderr).toContain('--record must be a JSON object that fits into 4096 bytes');
    expect(readFileSync(leases[0] as string, 'utf8')).toBe(before);
  },
);

test('without --record the lease files are left alone', async () => {
  const { leases } = workspace();
  const lease = leases[0] as string;
  const { mtimeMs } = statSync(lease);
  execFileSync('sync', ['-d', lease]);
  await complete({ leases, command: ['true'] });
  expect(statSync(lease).mtimeMs).toBe(mtimeMs);
});
