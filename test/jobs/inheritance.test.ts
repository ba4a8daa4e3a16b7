// The environment and descriptors that the command finds.
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import {
  complete,
  fixture,
  keeperOf,
  keeperPath,
  launch,
  Probe,
  pidIn,
  python,
  stat,
  until,
  workspace,
} from '../support/keeper.ts';
import { sendSignal, signalLiving } from '../support/processes.ts';
import { pause, settled } from '../support/time.ts';

const probe = new Probe();

test('the command has the lease’s descriptors, and none of the keeper’s', async () => {
  const { directory, leases } = workspace(3);
  const [held, ...ours] = leases as [string, string, string];
  const ended = await complete({
    leases: ours,
    // Without what the test's own caller may have left open.
    launcher: [
      '--held',
      held,
      '--placeholder',
      `${directory}/placeholder`,
      '--setup',
      'os.closerange(202, 1024)',
    ],
    command: ['sh', '-c', 'ls /proc/$$/fd'],
  });
  expect(ended.stdout.trim().split('\n')).toEqual(['0', '1', '2', '200', '201']);
});

test('a descriptor of the caller’s reaches the command, and only the command', async () => {
  const { directory } = workspace();
  const running = launch({
    stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    launcher: ['--setup', 'os.set_inheritable(3, True)'],
    command: [python, fixture('job.py'), directory, 'daemon', '--stay'],
  });
  const command = await pidIn(directory, 'daemon-command');
  let ended = false;
  running.child.stdio[3]?.on('close', () => {
    ended = true;
  });
  running.child.stdio[3]?.on('data', () => {});
  signalLiving(command, 'SIGSTOP');
  expect(ended).toBe(false);
  sendSignal(command, 'SIGKILL'); // the daemon has closed its own
  await until(() => ended, 'the end of the pipe');
  sendSignal(await pidIn(directory, 'daemon-child'), 'SIGKILL');
});

test('the output ends with the command, although a daemon lives on', async () => {
  const { directory, leases } = workspace();
  const command = [python, fixture('job.py'), directory, 'daemon', '--exit', '3'];
  expect(await complete({ leases, command })).toMatchObject({ code: 3 }); // waits for the pipes' ends
  expect(await probe.isHeld(leases[0] as string)).toBe(true);
  sendSignal(await pidIn(directory, 'daemon-child'), 'SIGKILL');
});

test('a command that closes its output lets its reader go on', async () => {
  const running = launch({ command: ['sh', '-c', 'exec >&-; exec sleep 60'] });
  await new Promise((resolve) => running.child.stdout?.on('end', resolve));
  running.kill('SIGTERM');
  expect((await running.exited).code).toBe(143);
});

test('the command ignores the signals of the mask, has defaults for the others, and none blocked', async () => {
  const launcher = [
    '--setup',
    'signal.signal(signal.SIGUSR1, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])',
  ];
  const ended = await complete({
    launcher,
    options: ['--ignore-signals', '0000000000001001'],
    command: ['cat', '/proc/self/status'],
  });
  const masks = [...ended.stdout.matchAll(/^(Sig(?:Blk|Ign|Cgt)):\s+(\w+)$/gm)].map(([, name, mask]) => [
    name,
    mask,
  ]);
  expect(masks).toEqual([
    ['SigBlk', '0000000000000000'],
    ['SigIgn', '0000000000001001'],
    ['SigCgt', '0000000000000000'],
  ]);
});

test('under nohup a hangup ends neither the command nor the front', async () => {
  const { directory } = workspace();
  const command = [python, fixture('job.py'), directory, 'fork', '--stay'];
  const running = launch({ options: ['--ignore-signals', '1'], command });
  const pid = await pidIn(directory, 'fork-command');
  running.kill('SIGHUP');
  running.kill('SIGHUP');
  running.kill('SIGTERM');
  expect(await running.exited).toEqual({ code: 143, signal: null });
  expect(stat(pid)?.state ?? 'Z').toBe('Z');
  sendSignal(await pidIn(directory, 'fork-child'), 'SIGKILL');
});

test('the command has the caller’s soft limit on open files', async () => {
  const command = ['sh', '-c', 'ulimit -Sn; ulimit -Hn'];
  const launcher = ['--setup', 'resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))'];
  expect((await complete({ launcher, options: ['--nofile', '512'], command })).stdout).toBe('512\n4096\n');
  expect((await complete({ launcher, options: ['--nofile', '9999'], command })).stdout).toBe('4096\n4096\n');
  expect((await complete({ launcher, command })).stdout).toBe('4096\n4096\n');
});

test('keeper and front are small and idle', async () => {
  const { leases } = workspace(8);
  const running = launch({ leases, options: ['--record', '{"user":"alice"}'], command: ['sleep', '60'] });
  const keeper = await keeperOf(running.pid);
  await until(() => stat(keeper)?.state === 'S', 'a quiet keeper');
  const ticks = () => [stat(keeper)?.ticks, stat(running.pid)?.ticks];
  const before = await settled(ticks);
  for (const pid of [keeper, running.pid]) {
    const rss = Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]);
    expect(rss).toBeLessThan(process.env.GPU_OWNER_SANITIZED ? 100_000 : 3072);
  }
  await pause(300);
  expect(ticks()).toEqual(before);
  running.kill('SIGTERM');
  await running.exited;
});

test('the keeper is linked to the C library alone', async () => {
  const readelf = spawn('readelf', ['-dV', keeperPath]);
  let text = '';
  readelf.stdout.on('data', (chunk) => {
    text += chunk;
  });
  const code = await new Promise((resolve) => {
    readelf.on('close', resolve);
    readelf.on('error', () => resolve(-1));
  });
  if (code !== 0 || process.env.GPU_OWNER_SANITIZED) return;
  expect([...text.matchAll(/NEEDED.*\[(.*)\]/g)].map((match) => match[1])).toEqual(['libc.so.6']);
  const versions = [...text.matchAll(/GLIBC_2\.(\d+)/g)].map((match) => Number(match[1]));
  expect(Math.max(...versions)).toBeLessThanOrEqual(28);
});
