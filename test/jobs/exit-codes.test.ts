import { copyFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { complete, keeperPath, Probe, Running, workspace } from '../support/keeper.ts';

const probe = new Probe();

test.each([
  ['TERM', 143],
  ['SEGV', 139],
])('the keeper exits with 128 + signal when the command dies by SIG%s', async (signal, code) => {
  const ended = await complete({ command: ['sh', '-c', `ulimit -c 0; kill -${signal} $$`] });
  expect(ended).toMatchObject({ code, signal: null });
});

test('the lease is free as soon as the keeper has exited', async () => {
  const { leases } = workspace();
  for (let i = 0; i < 10; ++i) {
    // The launcher fails if it can't lock.
    expect(await complete({ leases, command: ['true'] })).toMatchObject({ code: 0, stderr: '' });
  }
});

test('a script whose interpreter is missing ends with 127', async () => {
  const { directory } = workspace();
  const script = join(directory, 'script');
  writeFileSync(script, '#!/nonexistent/python\n', { mode: 0o755 });
  const ended = await complete({ command: [script] });
  expect(ended).toMatchObject({ code: 127 });
  expect(ended.stderr).toContain('the interpreter that its first line names was not found');
});

test('a script without a first line for an interpreter runs under sh', async () => {
  const { directory } = workspace();
  const script = join(directory, 'script');
  writeFileSync(script, 'exit 9\n', { mode: 0o755 });
  expect(await complete({ command: [script] })).toMatchObject({ code: 9, stderr: '' });
});

test.each([
  [[], /started by gpu-owner, not by people/],
  [['run'], /no command/],
  [
    ['run', '--leases', '200', '--', 'true'],
    /--leases needs open descriptors above 2, at most 256, not '200'/,
  ],
  [['run', '--held', '7x', '--', 'true'], /--held needs/],
  [['run', '--nofile', '-1', '--', 'true'], /--nofile needs a whole number, not '-1'/],
  [['run', '--ignore-signals', 'xyz', '--', 'true'], /--ignore-signals needs/],
  [['run', '--bogus', '1', '--', 'true'], /unknown option '--bogus'/],
  [['run', '--record'], /--record needs a value/],
  [['run', '--recheck', '0', '--', 'true'], /--recheck needs at least 1 ms/],
  [['task', '--', 'true'], /task needs --control/],
  [['run', '--directory', '/', '--', 'true'], /unknown option '--directory'/],
  [['wait', '--ahead', '1', '--', 'true'], /--ahead and --queue-path need --queue/],
  [['wait', '--locks', 'all', '--', 'true'], /--locks all needs --lock, and no --ahead/],
  [['wait', '--lock', '200', '--', 'true'], /--lock needs FD:NUMBER, not '200'/],
  [['hold', '--', 'true'], /hold takes no command/],
  [['hold', '--then', 'true'], /unknown option '--then'/],
  [['run', '--time-limit', '1x:1s', '--', 'true'], /--time-limit needs MS:TEXT, not '1x:1s'/],
  [['run', '--notice', '10:10', '--', 'true'], /--notice needs a longer --time-limit/],
  [['run', '--cancel', 'none', '--', 'true'], /--cancel needs all or command, not 'none'/],
  [['run', '--log', '3:0', '--', 'true'], /--log needs FD:BYTES .*, not '3:0'/],
] as [string[], RegExp][])('bad arguments are refused: %j', async (args, message) => {
  const running = new Running(keeperPath, args);
  expect(await running.exited).toEqual({ code: 64, signal: null });
  expect(running.stderr).toMatch(message);
});

test('messages carry no terminal controls', async () => {
  const ended = await complete({ command: ['no\u001b[31msuch'] });
  expect(ended.stderr).toBe("gpu-owner: cannot run 'no?[31msuch': not found\n");
});

test.each([
  [
    'closed standard descriptors',
    ['--close', '0', '--close', '1', '--close', '2'],
    'test ! -e /proc/self/fd/1',
  ],
  ['SIGCHLD ignored', ['--setup', 'signal.signal(signal.SIGCHLD, signal.SIG_IGN)'], 'exit 0'],
  [
    'all signals blocked',
    ['--setup', 'signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))'],
    'kill -TERM $$',
  ],
])('the keeper works when it is started with %s', async (_, launcher, script) => {
  const { leases } = workspace();
  const ended = await complete({ leases, launcher, command: ['sh', '-c', script] });
  expect(ended.code).toBe(script.startsWith('kill') ? 143 : 0);
  expect(await probe.isHeld(leases[0] as string)).toBe(false);
});

const asOther = (limit: number): string[] => [
  '--setup',
  `os.setgid(64998); os.setuid(64998); resource.setrlimit(resource.RLIMIT_NPROC, (${limit}, ${limit}))`,
];

// 0: the keeper itself can't be made; 3: the front, its witness and the keeper can, the command can't.
test.runIf(process.getuid?.() === 0).each([0, 3])(
  'the keeper exits with 71 if it can start no process (limit %i)',
  async (limit) => {
    const { leases } = workspace();
    // Where the other user may read it.
    const keeper = join(tmpdir(), `gpu-owner-keeper-${process.pid}-${limit}`);
    copyFileSync(keeperPath, keeper);
    // (A sanitizer's look for leaks needs a process as well.)
    const env = { ...process.env, ASAN_OPTIONS: 'detect_leaks=0' };
    try {
      const ended = await complete({ leases, keeper, launcher: asOther(limit), command: ['true'], env });
      expect(ended.code).toBe(71);
      expect(ended.stderr).toContain('gpu-owner: cannot start a process: Resource temporarily unavailable.');
      expect(await probe.isHeld(leases[0] as string)).toBe(false);
    } finally {
      rmSync(keeper);
    }
  },
);
