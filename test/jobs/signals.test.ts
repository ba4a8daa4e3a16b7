import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { fixture, keeperOf, launch, python, type Running, slow, stat, until } from '../support/keeper.ts';
import { sendSignal, signalLiving } from '../support/processes.ts';

async function start(args: string[] = [], env = process.env): Promise<{ running: Running; command: number }> {
  // In a group of its own, so that a signal to the group doesn't end the test.
  const running = launch({ command: [python, fixture('signals.py'), ...args], detached: true, env });
  await running.printed(/ready \d+\n/);
  return { running, command: Number(/ready (\d+)/.exec(running.stdout)?.[1]) };
}

const received = (running: Running): string[] => running.stdout.trim().split('\n').slice(1);

const FORWARDED: NodeJS.Signals[] = [
  'SIGINT',
  'SIGTERM',
  'SIGHUP',
  'SIGQUIT',
  'SIGUSR1',
  'SIGUSR2',
  'SIGALRM',
  'SIGWINCH',
  'SIGCONT',
  'SIGTSTP',
];

test('signals to the front reach the command, each once, as often as they are sent', async () => {
  const { running, command } = await start();
  for (const signal of [...FORWARDED, ...FORWARDED]) {
    const before = received(running).length;
    running.kill(signal);
    await until(() => received(running).length > before, signal);
  }
  await sleep(20);
  expect(received(running)).toEqual([...FORWARDED, ...FORWARDED]);
  sendSignal(command, 'SIGKILL');
  expect((await running.exited).code).toBe(137);
});

test.each([
  ['', () => process.env],
  [', also where processes have to wait for a processor', slow],
])('a signal to the whole group reaches the command once%s', async (_, env) => {
  const { running, command } = await start([], env());
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGUSR1'] as const) {
    const before = received(running).length;
    signalLiving(-running.pid, signal);
    await until(() => received(running).length > before, signal);
    await sleep(200);
  }
  expect(received(running)).toEqual(['SIGTERM', 'SIGINT', 'SIGUSR1']);
  running.kill('SIGTERM'); // and one to the front alone still does
  await until(() => received(running).length === 4, 'the last signal');
  sendSignal(command, 'SIGKILL');
  expect((await running.exited).code).toBe(137);
});

test('a command that left the group gets what the group gets', async () => {
  const { running, command } = await start(['--own-group']);
  signalLiving(-running.pid, 'SIGTERM');
  await until(() => received(running).includes('SIGTERM'), 'SIGTERM');
  sendSignal(command, 'SIGKILL');
  await running.exited;
});

test('the keeper isn’t ended by signals', async () => {
  const { running, command } = await start();
  const keeper = await keeperOf(running.pid);
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGUSR1', 'SIGPIPE'] as const)
    signalLiving(keeper, signal);
  running.kill('SIGUSR2');
  await running.printed(/SIGUSR2/);
  expect(received(running)).toEqual(['SIGUSR2']);
  sendSignal(command, 'SIGKILL');
  expect((await running.exited).code).toBe(137);
});

test('the front stops and goes on with the command', async () => {
  const { running, command } = await start(['--stoppable']);
  const states = (): string => `${stat(running.pid)?.state}${stat(command)?.state}`;
  for (let i = 0; i < 3; ++i) {
    signalLiving(command, 'SIGSTOP');
    await until(() => states() === 'TT', 'both stopped');
    signalLiving(command, 'SIGCONT');
    await until(() => states() === 'SS', 'both going on');
    signalLiving(command, 'SIGSTOP');
    await until(() => states() === 'TT', 'both stopped');
    running.kill('SIGCONT');
    await until(() => states() === 'SS', 'both going on');
  }
  sendSignal(command, 'SIGKILL');
  expect((await running.exited).code).toBe(137);
});

test('stopping and going on in quick succession never wedges', async () => {
  const { running, command } = await start(['--stoppable']);
  for (let i = 0; i < 200; ++i) {
    signalLiving(command, 'SIGSTOP');
    if (i % 3 === 0) await sleep(1);
    signalLiving(i % 2 ? command : -running.pid, 'SIGCONT');
    if (i % 5 === 0) await sleep(1);
  }
  await until(() => stat(running.pid)?.state === 'S' && stat(command)?.state === 'S', 'both going on');
  sendSignal(command, 'SIGKILL');
  expect((await running.exited).code).toBe(137);
});

test('the front ends when a stopped command is killed', async () => {
  const { running, command } = await start(['--stoppable']);
  signalLiving(command, 'SIGSTOP');
  await until(() => stat(running.pid)?.state === 'T', 'the stopped front');
  sendSignal(command, 'SIGKILL');
  expect((await running.exited).code).toBe(137);
});

test('a signal that comes before the command runs isn’t lost', async () => {
  for (let i = 0; i < 8; ++i) {
    const running = launch({ command: ['sleep', '60'], launcher: ['--setup', 'print("now", flush=True)'] });
    await running.printed(/now/);
    await sleep(i);
    // Until it has blocked signals, it is python or the keeper that dies of it.
    running.kill('SIGTERM');
    const { code, signal } = await running.exited;
    expect(code === 143 || signal === 'SIGTERM').toBe(true);
  }
});
