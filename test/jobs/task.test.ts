// A worker's task: no front, and everything ends with the worker.
import type { Socket } from 'node:net';
import { basename } from 'node:path';
import { expect, test } from 'vitest';
import {
  fixture,
  isAlive,
  type LaunchOptions,
  launch,
  Probe,
  pidIn,
  python,
  type Running,
  until,
  workspace,
} from './keeper.ts';

const probe = new Probe();

interface Event {
  event: string;
  pid?: number;
  code?: number;
  signal?: number;
  errno?: number;
  count?: number;
  processes?: { pid: number; name: string }[];
}

interface Task {
  running: Running;
  control: Socket;
  events: Event[];
  directory: string;
  lease: string;
  event(name: string): Promise<Event>;
}

/** This test is the worker: descriptor 3 of the keeper is the other end of `control`. */
function start(
  command: (directory: string) => string[],
  options: string[] = [],
  more: LaunchOptions = {},
): Task {
  const { directory, leases } = workspace();
  const running = launch({
    mode: 'task',
    leases,
    launcher: ['--setup', 'os.set_inheritable(3, True)'],
    options: ['--control', '3', '--record', '{}', ...options],
    command: command(directory),
    stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    ...more,
  });
  const control = running.child.stdio[3] as Socket;
  const events: Event[] = [];
  let text = '';
  control.setEncoding('utf8').on('data', (chunk: string) => {
    const lines = (text + chunk).split('\n');
    text = lines.pop() ?? '';
    for (const line of lines) events.push(JSON.parse(line));
  });
  control.on('error', () => {});
  const event = async (name: string): Promise<Event> => {
    await until(() => events.some((one) => one.event === name), `${name} in ${JSON.stringify(events)}`);
    return events.find((one) => one.event === name) as Event;
  };
  return { running, control, events, directory, lease: leases[0] as string, event };
}

const job = (way: string, ...rest: string[]): ((directory: string) => string[]) => {
  return (directory) => [python, fixture('job.py'), directory, way, ...rest];
};

test('a task from start to end', async () => {
  const { running, events, lease } = start(() => ['sh', '-c', 'echo out; echo err >&2; exit 4']);
  expect(await running.exited).toEqual({ code: 0, signal: null });
  await until(() => events.length === 3, 'all events');
  expect(events).toEqual([
    { event: 'started', pid: expect.any(Number) },
    { event: 'ended', code: 4 },
    { event: 'released' },
  ]);
  expect([running.stdout, running.stderr]).toEqual(['out\n', 'err\n']);
  expect(await probe.isHeld(lease)).toBe(false);
});

test('the command has a session of its own', async () => {
  const { running } = start(() => [python, '-c', 'import os; print(os.getsid(0) == os.getpid())']);
  await running.exited;
  await running.printed(/True/);
});

test('a command that can’t start', async () => {
  const { running, events, lease } = start(() => ['pyhton']);
  expect((await running.exited).code).toBe(0);
  await until(() => events.length === 2, 'all events');
  expect(events).toEqual([
    { event: 'failed', errno: 2, code: 127, text: 'not found' },
    { event: 'released' },
  ]);
  expect(await probe.isHeld(lease)).toBe(false);
});

test('a signal for the command, also in pieces and among nonsense', async () => {
  const { running, control, event } = start(() => [python, fixture('signals.py')]);
  await running.printed(/ready/);
  control.write('nonsense\n{"signal":999}\n{"signal":0}\n\n');
  control.write('x'.repeat(5000));
  control.write('\n{"sig');
  await new Promise((resolve) => setTimeout(resolve, 20));
  control.write('nal":10}\n');
  await running.printed(/SIGUSR1/);
  control.write('{"signal":9}\n');
  expect(await event('ended')).toEqual({ event: 'ended', signal: 9 });
  expect((await running.exited).code).toBe(0);
});

test('stops and continuations are told', async () => {
  const { running, control, event } = start(() => ['sleep', '60']);
  const { pid } = await event('started');
  process.kill(pid as number, 'SIGSTOP');
  expect(await event('stopped')).toEqual({ event: 'stopped', signal: 19 });
  process.kill(pid as number, 'SIGCONT');
  await event('continued');
  process.kill(pid as number, 'SIGSTOP');
  control.write('terminate\n'); // a stopped one ends as well
  expect(await event('ended')).toEqual({ event: 'ended', signal: 15 });
  await running.exited;
});

test('survivors are told, and end on request', async () => {
  const { running, control, directory, event, lease } = start(job('daemon'));
  const child = await pidIn(directory, 'daemon-child');
  expect(await event('ended')).toEqual({ event: 'ended', code: 0 });
  const survivors = await event('survivors');
  expect(survivors).toEqual({
    event: 'survivors',
    count: 1,
    processes: [{ pid: child, name: basename(python) }],
  });
  expect(await probe.isHeldFor(lease, 60)).toBe(true);
  control.write('terminate\n');
  await event('released');
  expect(await running.exited).toEqual({ code: 0, signal: null });
  expect(await probe.isHeld(lease)).toBe(false);
  expect(isAlive(child)).toBe(false);
});

test.each(['fork', 'popen', 'new_session', 'daemon', 'spawn', 'stubborn', 'stubborn_daemon', 'respawning'])(
  'the worker dies: everything ends (%s)',
  async (way) => {
    const { running, control, directory, lease } = start(job(way, '--stay'), ['--grace', '150']);
    const child = await pidIn(directory, `${way}-child`);
    const command = await pidIn(directory, `${way}-command`);
    expect(await probe.isHeld(lease)).toBe(true);
    control.destroy();
    expect(await running.exited).toEqual({ code: 0, signal: null });
    expect(await probe.isHeld(lease)).toBe(false);
    expect([child, command].map(isAlive)).toEqual([false, false]);
  },
);

test('SIGTERM to the keeper ends the task', async () => {
  const { running, directory, lease, event } = start(job('fork', '--stay'));
  await pidIn(directory, 'fork-command');
  running.kill('SIGINT'); // not this one
  expect(await probe.isHeldFor(lease, 30)).toBe(true);
  running.kill('SIGTERM');
  expect(await event('ended')).toEqual({ event: 'ended', signal: 15 });
  await running.exited;
  expect(await probe.isHeld(lease)).toBe(false);
});

test('the keeper is killed: what the command inherited keeps the lease', async () => {
  const { running, directory, lease } = start(job('fork', '--stay'));
  const command = await pidIn(directory, 'fork-command');
  running.kill('SIGKILL');
  await running.exited;
  expect(await probe.isHeldFor(lease, 60)).toBe(true);
  process.kill(command, 'SIGKILL');
  process.kill(await pidIn(directory, 'fork-child'), 'SIGKILL');
  await probe.free(lease);
});

test('a placeholder that is the keeper’s child counts as nobody’s', async () => {
  const { directory } = workspace();
  const file = `${directory}/placeholder`;
  const launcher = ['--setup', 'os.set_inheritable(3, True)', '--placeholder', file];
  const { running, events, lease } = start(() => ['true'], [], { launcher });
  expect((await running.exited).code).toBe(0);
  expect(events.map((one) => one.event)).not.toContain('survivors');
  expect(isAlive(await pidIn(directory, 'placeholder'))).toBe(false);
  expect(await probe.isHeld(lease)).toBe(false);
});
