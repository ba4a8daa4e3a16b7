import { copyFileSync, linkSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import {
  complete,
  fixture,
  keeperOf,
  keeperPath,
  type LaunchOptions,
  launch,
  pidIn,
  python,
  Running,
  restingKeeperOf,
  until,
  workspace,
} from '../support/keeper.ts';
import { childrenOf, sendSignal } from '../support/processes.ts';
import { emptyJobFile, jobState } from './job-state.ts';

/** A job in the background: its file, its lock and a lease. */
function background(options: LaunchOptions = {}) {
  const { directory, leases } = workspace(2);
  const [lease, lock] = leases as [string, string];
  const file = emptyJobFile(directory);
  const launcher = ['--inherited', lock, '--job', file, ...(options.launcher ?? [])];
  return { directory, file, lease, lock, options: { ...options, launcher, leases: [lease] } };
}

test.each([
  ['exit 0', { exitCode: 0, signal: null }],
  ['exit 7', { exitCode: 7, signal: null }],
  ['kill -TERM $$', { exitCode: 143, signal: 15 }],
])('the job’s file tells how the command ended: %s', async (script, end) => {
  const { file, options } = background({ command: ['sh', '-c', script] });
  const before = Date.now();
  const { code } = await complete(options);
  const state = jobState(file);
  expect(state).toEqual({
    keeper: expect.any(Number),
    front: expect.any(Number),
    pid: expect.any(Number),
    commandEnded: expect.any(Number),
    ended: expect.any(Number),
    timeLimit: false,
    cancelled: false,
    requeued: null,
    preempted: 0,
    failures: 0,
    ran: 0,
    limit: null,
    ...end,
  });
  expect(state.exitCode).toBe(code);
  expect(state.commandEnded).toBeGreaterThanOrEqual(before);
  expect(state.ended).toBeGreaterThanOrEqual(state.commandEnded as number);
});

test('the job’s file tells that the command runs, and then that its processes do', async () => {
  const { directory, file, options } = background();
  const command = [python, fixture('job.py'), directory, 'fork', '--stay'];
  const running = launch({ ...options, command });
  const pid = await pidIn(directory, 'fork-command');
  const keeper = await keeperOf(running.pid);
  expect(jobState(file)).toMatchObject({ keeper, front: running.pid, pid, exitCode: null, ended: null });
  sendSignal(pid, 'SIGKILL');
  await running.exited;
  expect(jobState(file)).toMatchObject({ exitCode: 137, signal: 9, ended: null });
  expect(jobState(file).commandEnded).toBeGreaterThan(0);
  sendSignal(await pidIn(directory, 'fork-child'), 'SIGKILL');
  await until(() => jobState(file).ended !== null, 'the end');
});

test.each([
  ['pyhton', 127],
  ['/etc/passwd', 126],
])('the job’s file tells that the command could not be started: %s', async (program, exitCode) => {
  const { file, options } = background({ command: [program] });
  expect((await complete(options)).code).toBe(exitCode);
  expect(jobState(file)).toMatchObject({ pid: null, exitCode, signal: null, commandEnded: null });
  expect(jobState(file).ended).toBeGreaterThan(0);
});

test.runIf(process.getuid?.() === 0)('the job’s file tells that no process could be started', async () => {
  const noProcess = 'os.setgid(64998); os.setuid(64998); resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))';
  const { file, options } = background({ command: ['true'], launcher: ['--setup', noProcess] });
  // Where the other user may read it.
  const keeper = join(tmpdir(), `gpu-owner-keeper-${process.pid}-job`);
  copyFileSync(keeperPath, keeper);
  try {
    const env = { ...process.env, ASAN_OPTIONS: 'detect_leaks=0' };
    expect((await complete({ ...options, keeper, env })).code).toBe(71);
  } finally {
    rmSync(keeper);
  }
  expect(jobState(file)).toMatchObject({ keeper: null, pid: null, exitCode: 71 });
  expect(jobState(file).ended).toBeGreaterThan(0);
});

test('the job’s file tells of the time limit', async () => {
  const { file, options } = background({
    options: ['--time-limit', '200:200ms', '--grace', '600000'],
    command: ['sleep', '600'],
  });
  expect((await complete(options)).code).toBe(124);
  expect(jobState(file)).toMatchObject({ exitCode: 124, signal: 15, timeLimit: true, cancelled: false });
});

test('nothing else of the job’s file changes', async () => {
  const { file, options } = background({ command: ['true'] });
  const before = readFileSync(file);
  await complete(options);
  const after = readFileSync(file);
  expect(after.length).toBe(before.length);
  expect(after.subarray(0, 4096).equals(before.subarray(0, 4096))).toBe(true);
  expect(after.subarray(4608).equals(before.subarray(4608))).toBe(true);
  expect(after.at(4607)).toBe(10);
});

test('once the job’s lock is free, its end is in its file and its leases are free', async () => {
  for (let i = 0; i < 10; i++) {
    const { directory, file, lease, lock, options } = background();
    const running = launch({ ...options, command: ['sh', '-c', 'echo $$ >"$0/pid"; sleep 600', directory] });
    const pid = await pidIn(directory, 'pid');
    const waiter = new Running(python, [fixture('await_lock.py'), lock, file, lease]);
    await waiter.printed(/waiting/);
    if (i % 2) sendSignal(await restingKeeperOf(running.pid), 'SIGKILL');
    for (const child of childrenOf(pid)) sendSignal(child, 'SIGKILL');
    sendSignal(pid, 'SIGKILL');
    await waiter.printed(/\}\n/);
    const { held, state } = JSON.parse(waiter.stdout.slice('waiting'.length));
    expect(held).toEqual([]);
    expect(state.ended).toBeGreaterThan(0);
  }
});

test('the command doesn’t inherit the job’s file', async () => {
  const { file, options } = background({ command: ['sh', '-c', 'ls -l /proc/self/fd'] });
  const { stdout } = await complete(options);
  expect(stdout).toContain('lease-1'); // the lock of the job
  expect(stdout).not.toContain(file);
});

test('the front writes on when the keeper is killed', async () => {
  const { directory, file, options } = background();
  const running = launch({
    ...options,
    command: ['sh', '-c', 'echo $$ >"$0/pid"; exec sleep 600', directory],
  });
  const pid = await pidIn(directory, 'pid');
  sendSignal(await restingKeeperOf(running.pid), 'SIGKILL');
  await until(() => jobState(file).keeper === running.pid, 'the front in the file');
  expect(jobState(file)).toMatchObject({ front: running.pid, pid, exitCode: null, ended: null });
  sendSignal(pid, 'SIGTERM');
  expect((await running.exited).code).toBe(143);
  expect(jobState(file)).toMatchObject({ exitCode: 143, signal: 15 });
  expect(jobState(file).ended).toBeGreaterThan(0);
});

test('the keeper writes on when the front is killed', async () => {
  const { directory, file, options } = background();
  const running = launch({
    ...options,
    command: ['sh', '-c', 'echo $$ >"$0/pid"; exec sleep 600', directory],
  });
  const pid = await pidIn(directory, 'pid');
  running.kill('SIGKILL');
  await running.exited;
  sendSignal(pid, 'SIGTERM');
  await until(() => jobState(file).ended !== null, 'the end');
  expect(jobState(file)).toMatchObject({ exitCode: 143, signal: 15 });
});

test('a job without GPUs says nothing of any', async () => {
  const { directory } = workspace();
  const file = emptyJobFile(directory);
  const options = ['--gpus', ''];
  const command = [python, fixture('job.py'), directory, 'daemon', '--stay'];
  const running = launch({ launcher: ['--job', file], options, command });
  const pid = await pidIn(directory, 'daemon-command');
  sendSignal(await restingKeeperOf(running.pid), 'SIGKILL');
  await until(() => running.stderr.includes('was killed'), 'the message');
  sendSignal(pid, 'SIGTERM');
  await until(() => running.stderr.includes('still runs'), 'the message');
  expect(running.stderr).toMatch(
    /^gpu-owner: the keeper \(process \d+\) was killed; this process now keeps the job until the last process of \S+ has ended\n.* was ended by SIGTERM, but 1 of its processes still runs: \d+ \(\S+\)\n$/,
  );
  sendSignal(await pidIn(directory, 'daemon-child'), 'SIGKILL');
  expect((await running.exited).code).toBe(143);
});

test('what can’t be a job’s file is refused', async () => {
  const { directory } = workspace();
  const file = emptyJobFile(directory);
  const linked = join(directory, 'linked');
  writeFileSync(linked, 'somebody’s');
  linkSync(linked, join(directory, 'other'));
  const setup = (code: string) => [
    '--setup',
    `fd = ${code}; os.set_inheritable(fd, True); options += ['--job', str(fd)]`,
  ];
  const opened = (path: string, flags: string) => setup(`os.open(${JSON.stringify(path)}, ${flags})`);
  const hostile = {
    'read-only': opened(file, 'os.O_RDONLY'),
    'open for appending': opened(file, 'os.O_RDWR | os.O_APPEND'),
    'a path': opened(file, 'os.O_PATH'),
    'a directory': opened(directory, 'os.O_RDONLY'),
    'a device': opened('/dev/null', 'os.O_RDWR'),
    'a pipe': setup('os.pipe()[1]'),
    'a socket': setup('socket.socketpair()[0].detach()'),
    'with two names': opened(linked, 'os.O_RDWR'),
  };
  for (const [name, launcher] of Object.entries(hostile)) {
    const ended = await complete({ launcher, command: ['true'] });
    expect({ name, ...ended }).toMatchObject({ name, code: 64 });
    expect(ended.stderr).toMatch(/--job needs a regular file with one name, open for writing, not '\d+'/);
  }
  expect(readFileSync(linked, 'utf8')).toBe('somebody’s');
});
