// A worker's task: the leases stay the worker's as long as it lives, and everything ends with it.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import { basename } from 'node:path';
import { expect, test } from 'vitest';
import {
  childrenOf,
  fixture,
  isAlive,
  keeperPath,
  type LaunchOptions,
  launch,
  Probe,
  pidIn,
  python,
  Running,
  slow,
  until,
  workspace,
} from '../support/keeper.ts';
import { sendSignal, signalLiving } from '../support/processes.ts';
import { pause } from '../support/time.ts';

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
  /** The watchdog. */
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

/** Returns what is there of a task, as soon as its command runs. */
async function processes({ event }: Task): Promise<{ keeper: number; command: number }> {
  const [keeper, command] = [await event('keeper'), await event('started')];
  return { keeper: keeper.pid as number, command: command.pid as number };
}

test('the lease stays the worker’s from a task’s start to its end', async () => {
  const { running, control, events, lease } = start(() => ['sh', '-c', 'echo out; echo err >&2; exit 4']);
  expect(await running.exited).toEqual({ code: 0, signal: null });
  await until(() => events.length === 4, 'all events');
  expect(events).toEqual([
    { event: 'keeper', pid: expect.any(Number) },
    { event: 'started', pid: expect.any(Number) },
    { event: 'ended', code: 4 },
    { event: 'released' },
  ]);
  expect([running.stdout, running.stderr]).toEqual(['out\n', 'err\n']);
  const record = JSON.parse(readFileSync(lease, 'utf8'));
  expect(record).toEqual({ pid: process.pid, keeper: process.pid, survivors: 0, ended: null });
  // No process has unlocked: the launcher's descriptor was the only one, and that is gone.
  expect(await probe.isHeld(lease)).toBe(false);
  control.destroy();
});

test('the worker’s own descriptor holds the lease from task to task', async () => {
  const { directory, leases } = workspace();
  const lease = leases[0] as string;
  // Python plays the worker: two tasks one after the other under a lease that it has locked itself.
  const worker = new Running(python, [fixture('two_tasks.py'), keeperPath, lease, directory]);
  for (const task of [1, 2]) {
    await worker.printed(new RegExp(`task ${task} has ended: 0`));
    expect(await probe.isHeld(lease)).toBe(true);
    signalLiving(worker.pid, 'SIGUSR1');
  }
  expect((await worker.exited).code).toBe(0);
  expect(await probe.isHeld(lease)).toBe(false);
});

test('the keeper’s start is reported first, also where it overtakes the watchdog', async () => {
  const { running, events } = start(() => ['pyhton'], [], { env: slow() });
  await running.exited;
  await until(() => events.length === 3, 'all events');
  expect(events.map(({ event }) => event)).toEqual(['keeper', 'failed', 'released']);
});

test('a command that can’t start in its directory is reported', async () => {
  const nowhere = start(() => ['pwd'], ['--directory', '/nonexistent']);
  expect(await nowhere.event('failed')).toMatchObject({
    errno: 2,
    text: expect.stringContaining('directory to start in'),
  });
});

test('leases reach the command under numbers from 200 on', async () => {
  // Besides number 200, which the launcher gives it.
  const setup = 'os.set_inheritable(3, True); os.dup2(200, 9)';
  const code = `import os
names = {n: os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")}
print("leases:", sorted(int(n) for n, name in names.items() if "lease-0" in name))`;
  const { running } = start(() => [python, '-c', code], ['--leases', '9'], { launcher: ['--setup', setup] });
  await running.printed(/leases: \[200, 201\]/);
});

test('the keeper passes a signal on to the command, also if it is asked in pieces and among nonsense', async () => {
  const { running, control, event } = start(() => [python, fixture('signals.py')]);
  await running.printed(/ready/);
  control.write('nonsense\n{"signal":999}\n{"signal":0}\n\n');
  control.write('x'.repeat(5000));
  control.write('\n{"sig');
  await pause(20);
  control.write('nal":10}\n');
  await running.printed(/SIGUSR1/);
  control.write('{"signal":9}\n');
  expect(await event('ended')).toEqual({ event: 'ended', signal: 9 });
  expect((await running.exited).code).toBe(0);
});

test('stopping and continuing a command is reported', async () => {
  const { running, control, event } = start(() => ['sleep', '60']);
  const { pid } = await event('started');
  signalLiving(pid, 'SIGSTOP');
  expect(await event('stopped')).toEqual({ event: 'stopped', signal: 19 });
  signalLiving(pid, 'SIGCONT');
  await event('continued');
  signalLiving(pid, 'SIGSTOP');
  control.write('{"terminate":10000}\n'); // a stopped one ends as well
  expect(await event('ended')).toEqual({ event: 'ended', signal: 15 });
  await running.exited;
});

test.each(['daemon', 'stubborn', 'respawning'])(
  'processes that the command leaves behind are reported, and ended (%s)',
  async (way) => {
    const { running, directory, event, events } = start(job(way), ['--grace', '150']);
    const child = await pidIn(directory, `${way}-child`);
    expect(await event('ended')).toEqual({ event: 'ended', code: 0 });
    const survivors = await event('survivors');
    if (way === 'daemon') {
      expect(survivors).toEqual({
        event: 'survivors',
        count: 1,
        processes: [{ pid: child, name: basename(python) }],
      });
    }
    expect(await running.exited).toEqual({ code: 0, signal: null });
    await until(() => events.at(-1)?.event === 'released', 'the last event');
    expect(isAlive(child)).toBe(false);
  },
);

test.each(['fork', 'spawn', 'stubborn_daemon', 'respawning'])(
  'everything ends when the worker dies (%s)',
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

test.each(['fork', 'stubborn_daemon', 'respawning'])(
  'the watchdog ends everything when the keeper is killed (%s)',
  async (way) => {
    const task = start(job(way, '--stay'), ['--grace', '150']);
    const { running, directory, event, events, lease } = task;
    const child = await pidIn(directory, `${way}-child`);
    const { keeper, command } = await processes(task);
    sendSignal(keeper, 'SIGKILL');
    await event('keeper-lost');
    await event('released');
    expect([child, command].map(isAlive)).toEqual([false, false]);
    expect(await running.exited).toEqual({ code: 0, signal: null });
    expect(events.filter((one) => one.event === 'released')).toHaveLength(1);
    expect(await probe.isHeld(lease)).toBe(false);
  },
);

test('the watchdog ends the rest when the keeper is killed after the command’s end', async () => {
  const task = start(job('stubborn'), ['--grace', '60000']);
  const { running, event } = task;
  const { keeper } = await processes(task);
  expect(await event('ended')).toEqual({ event: 'ended', code: 0 });
  await event('survivors');
  sendSignal(keeper, 'SIGKILL');
  await event('keeper-lost');
  task.control.write('{"terminate":0}\n');
  await event('released');
  await running.exited;
});

test('the command keeps the lease while it lives when keeper, watchdog and worker are killed', async () => {
  const task = start(job('popen', '--stay'));
  const { running, control, directory, lease } = task;
  const child = await pidIn(directory, 'popen-child');
  const { command, keeper } = await processes(task);
  running.kill('SIGSTOP'); // or it would end the command when the keeper is gone
  sendSignal(keeper, 'SIGKILL');
  running.kill('SIGKILL');
  control.destroy();
  await running.exited;
  expect([command, child].map(isAlive)).toEqual([true, true]);
  expect(await probe.isHeldFor(lease, 50)).toBe(true);
  sendSignal(child, 'SIGKILL');
  sendSignal(command, 'SIGKILL');
  await probe.free(lease);
});

test('a watchdog that is stopped does not keep the lease', async () => {
  const task = start(job('fork', '--stay'));
  const { running, control, lease } = task;
  await pidIn(task.directory, 'fork-command');
  running.kill('SIGSTOP');
  control.write('{"terminate":0}\n');
  await task.event('released');
  expect(await running.exited).toEqual({ code: 0, signal: null }); // the keeper has continued it
  expect(await probe.isHeld(lease)).toBe(false);
});

test('watchdog, keeper and command run as parent and child', async () => {
  const task = start(job('fork', '--stay'));
  const { keeper, command } = await processes(task);
  expect(childrenOf(task.running.pid)).toEqual([keeper]);
  expect(childrenOf(keeper)).toEqual([command]);
  const name = (pid: number) => readFileSync(`/proc/${pid}/comm`, 'utf8').trim();
  await until(() => name(keeper) === 'gpu-owner-keep', 'its name');
  expect(name(task.running.pid)).toBe('gpu-owner-guard');
});

test('a task that ends with its worker notes the end and removes markers and locks, which otherwise stay', async () => {
  for (const dies of [false, true]) {
    const { directory } = workspace();
    const marker = `${directory}/marker`;
    writeFileSync(marker, `{"owner": 0, "token": "abc"}`);
    const launcher = ['--setup', 'os.set_inheritable(3, True)', '--marker', `${marker}=abc`];
    const task = start(job('fork', '--stay'), ['--grace', '150'], { launcher });
    await pidIn(task.directory, 'fork-command');
    if (dies) task.control.destroy();
    else task.control.write('{"terminate":0}\n');
    await task.running.exited;
    expect(existsSync(marker)).toBe(!dies);
    const { ended } = JSON.parse(readFileSync(task.lease, 'utf8'));
    expect(ended === null).toBe(!dies);
  }
});
