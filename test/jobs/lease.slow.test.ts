// The lease lives exactly as long as anything of the job does.
import { linkSync, readFileSync, unlinkSync } from 'node:fs';
import { basename } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { expect, test } from 'vitest';
import {
  childrenOf,
  fixture,
  isAlive,
  keeperOf,
  launch,
  Probe,
  pidIn,
  python,
  type Running,
  restingKeeperOf,
  until,
  workspace,
} from '../support/keeper.ts';
import { sendSignal, signalLiving } from '../support/processes.ts';

const probe = new Probe();
const name = basename(python);
const GPUS = ['--gpus', 'GPU 0, 3'];

function job(
  way: string,
  rest: string[],
  launcher: string[] = [],
): { running: Running; directory: string; lease: string } {
  const { directory, leases } = workspace(2);
  const command = [python, fixture('job.py'), directory, way, ...rest];
  return {
    running: launch({ leases, launcher, options: GPUS, command }),
    directory,
    lease: leases[1] as string,
  };
}

test.each(['spawn', 'grandchild_of_thread'])(
  'the command’s descendant keeps the lease when the command ends: %s',
  async (way) => {
    const { running, directory, lease } = job(way, ['--exit', '5']);
    expect(await running.exited).toEqual({ code: 5, signal: null });
    const child = await pidIn(directory, `${way}-child`);
    expect(isAlive(child) || way === 'grandchild_of_thread').toBe(true);
    const count = way === 'spawn' ? 2 : 1; // multiprocessing's resource tracker is there as well
    expect(running.stderr).toContain(
      count === 1
        ? `gpu-owner: ${name} has ended (exit code 5), but 1 of its processes still runs and keeps GPU 0, 3: `
        : `gpu-owner: ${name} has ended (exit code 5), but 2 of its processes still run and keep GPU 0, 3: `,
    );
    expect(running.stderr).toContain(`${child} (${name}`);
    expect(await probe.isHeldFor(lease, 60)).toBe(true);
    sendSignal(child, 'SIGKILL');
    await probe.free(lease);
  },
);

test('front, keeper and command run as parent and child', async () => {
  const { running, directory } = job('fork', ['--stay']);
  const command = await pidIn(directory, 'fork-command');
  const keeper = await keeperOf(running.pid);
  expect(childrenOf(keeper)).toEqual([command]);
  running.kill('SIGTERM');
  expect(await running.exited).toEqual({ code: 143, signal: null });
  sendSignal(await pidIn(directory, 'fork-child'), 'SIGKILL');
});

test('a normal multi-process program ends without a word', async () => {
  const command = [
    python,
    '-c',
    'import multiprocessing as m; p = m.get_context("spawn").Process(target=print); p.start(); p.join()',
  ];
  // The helper process has a fraction of a second to end, which a busy machine may take from it, but not each time.
  let said = 'nothing yet';
  for (let i = 0; i < 20 && said !== ''; i++) {
    const running = launch({ leases: workspace().leases, command });
    expect(await running.exited).toEqual({ code: 0, signal: null });
    said = running.stderr;
  }
  expect(said).toBe('');
});

test('if the keeper is killed, the front takes its place', async () => {
  const { running, directory, lease } = job('daemon', ['--stay']);
  const command = await pidIn(directory, 'daemon-command');
  const child = await pidIn(directory, 'daemon-child');
  const keeper = await restingKeeperOf(running.pid);
  sendSignal(keeper, 'SIGKILL');
  await until(() => running.stderr.includes('was killed; this process now keeps GPU 0, 3'), 'the message');
  expect(await probe.isHeldFor(lease, 60)).toBe(true);
  expect([command, child].map(isAlive)).toEqual([true, true]);
  running.kill('SIGTERM'); // still forwarded
  await until(
    () => running.stderr.includes(`${name} was ended by SIGTERM, but 1 of its processes`),
    'the message',
  );
  expect(await probe.isHeldFor(lease, 60)).toBe(true);
  expect(isAlive(running.pid)).toBe(true);
  sendSignal(child, 'SIGKILL');
  expect(await running.exited).toEqual({ code: 143, signal: null });
  expect(await probe.isHeld(lease)).toBe(false);
});

test('a placeholder that lives doesn’t keep the front when the keeper is killed', async () => {
  const { directory, leases } = workspace();
  const file = `${directory}/placeholder`;
  const command = [python, fixture('job.py'), directory, 'fork', '--stay'];
  const running = launch({ leases, launcher: ['--placeholder', file], command });
  await pidIn(directory, 'fork-command');
  const placeholder = await pidIn(directory, 'placeholder');
  sendSignal(await keeperOf(running.pid), 'SIGKILL');
  await until(() => !isAlive(placeholder), 'the end of the placeholder');
  sendSignal(await pidIn(directory, 'fork-child'), 'SIGKILL');
  signalLiving(await pidIn(directory, 'fork-command'), 'SIGINT');
  expect((await running.exited).code).toBe(130);
  expect(await probe.isHeld(leases[0] as string)).toBe(false);
});

test('if front and keeper are killed, what the command inherited keeps the lease', async () => {
  const { running, directory, lease } = job('fork', ['--stay']);
  const command = await pidIn(directory, 'fork-command');
  const child = await pidIn(directory, 'fork-child');
  const keeper = await keeperOf(running.pid);
  signalLiving(keeper, 'SIGSTOP');
  running.kill('SIGKILL');
  sendSignal(keeper, 'SIGKILL');
  await running.exited;
  await until(() => !isAlive(keeper), 'the end of the keeper');
  expect(await probe.isHeldFor(lease, 60)).toBe(true);
  sendSignal(command, 'SIGKILL');
  expect(await probe.isHeldFor(lease, 60)).toBe(true);
  sendSignal(child, 'SIGKILL');
  await probe.free(lease);
});

test('a front that is stopped doesn’t hold the lease when the job has ended', async () => {
  const { running, directory, lease } = job('fork', ['--stay']);
  const command = await pidIn(directory, 'fork-command');
  running.kill('SIGSTOP');
  sendSignal(await pidIn(directory, 'fork-child'), 'SIGKILL');
  sendSignal(command, 'SIGKILL');
  await probe.free(lease);
  expect(await running.exited).toEqual({ code: 137, signal: null }); // the keeper lets it go on
});

test('other locks and the placeholder are kept by the keeper, and end with the job', async () => {
  const { directory, leases } = workspace(2);
  const [lease, held] = leases as [string, string];
  const command = [python, fixture('job.py'), directory, 'daemon'];
  const launcher = ['--held', held, '--placeholder', `${directory}/placeholder`];
  const running = launch({ leases: [lease], launcher, command });
  expect((await running.exited).code).toBe(0);
  const placeholder = await pidIn(directory, 'placeholder');
  expect(running.stderr).toContain('1 of its processes still runs');
  expect(await probe.isHeldFor(held, 60)).toBe(true);
  expect(isAlive(placeholder)).toBe(true);
  sendSignal(await pidIn(directory, 'daemon-child'), 'SIGKILL');
  await probe.free(lease);
  await probe.free(held);
  await until(() => !isAlive(placeholder), 'the end of the placeholder');
});

test('a lease file that is removed is reported, with the remedy', async () => {
  const { leases } = workspace();
  const options = ['--recheck', '20', '--gpus', 'GPU 2'];
  const running = launch({ leases, options, command: ['sleep', '60'] });
  await keeperOf(running.pid);
  unlinkSync(leases[0] as string);
  await until(
    () => running.stderr.includes('the lease file of GPU 2 was removed while in use'),
    'the warning',
  );
  running.kill('SIGTERM');
  expect((await running.exited).code).toBe(143);
  expect(running.stderr.match(/removed/g)).toHaveLength(1);
});

test('a lease file that is removed is reported although it has another name; the loss of another name isn’t', async () => {
  const { leases } = workspace();
  const [lease] = leases as [string];
  linkSync(lease, `${lease}.backup`);
  linkSync(lease, `${lease}.other`);
  const options = ['--recheck', '20', '--gpus', 'GPU 2', '--lease-file', lease];
  const running = launch({ leases, options, command: ['sleep', '60'] });
  await keeperOf(running.pid);
  unlinkSync(`${lease}.other`);
  await pause(200);
  expect(running.stderr).toBe('');
  unlinkSync(lease);
  await until(() => running.stderr.includes('the lease file of GPU 2 was removed'), 'the warning');
  running.kill('SIGTERM');
  await running.exited;
});

test('a file in which others hold a part as well is kept like a lease, but nothing is written to it', async () => {
  const { directory, leases } = workspace(2);
  const [lease, shared] = leases as [string, string];
  const before = readFileSync(shared);
  const running = launch({
    leases: [lease],
    launcher: ['--shared', shared],
    options: ['--record', '{}'],
    command: [python, fixture('job.py'), directory, 'fork', '--stay'],
  });
  const command = await pidIn(directory, 'fork-command');
  const child = await pidIn(directory, 'fork-child');
  sendSignal(command, 'SIGKILL');
  await running.exited;
  expect(await probe.isHeldFor(shared, 60)).toBe(true);
  sendSignal(child, 'SIGKILL');
  await probe.free(shared);
  await probe.free(lease);
  expect(readFileSync(shared).equals(before)).toBe(true);
  expect(readFileSync(lease).equals(before)).toBe(false);
});

test('another lock that a job has lasts as long; it is no lease, so its file may be removed', async () => {
  const { directory, leases } = workspace(3);
  const [lease, other, removed] = leases as [string, string, string];
  const running = launch({
    leases: [lease],
    launcher: ['--inherited', other, '--inherited', removed],
    options: ['--recheck', '20', '--gpus', 'GPU 2'],
    command: [python, fixture('job.py'), directory, 'fork', '--stay'],
  });
  const command = await pidIn(directory, 'fork-command');
  const child = await pidIn(directory, 'fork-child');
  unlinkSync(removed);
  await pause(200);
  sendSignal(command, 'SIGKILL');
  await running.exited;
  expect(running.stderr).not.toContain('removed');
  expect(await probe.isHeldFor(other, 60)).toBe(true);
  sendSignal(child, 'SIGKILL');
  await probe.free(other);
  await probe.free(lease);
});
