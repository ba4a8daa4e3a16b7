// The keeper's care for the output of a background job, and the program that it starts after the job.
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import {
  complete,
  fixture,
  launch,
  pidIn,
  python,
  restingKeeperOf,
  until,
  workspace,
} from '../support/keeper.ts';
import { sendSignal } from '../support/processes.ts';
import { makesHoles } from './background.ts';
import { emptyJobFile, jobState } from './job-state.ts';

interface Found {
  descriptors: number[];
  held: boolean;
}

/** A lease, and the options for a program that tells in a file what it finds. */
function withAfter(...rest: string[]) {
  const { directory, leases } = workspace(2);
  const [lease, lock] = leases as [string, string];
  const told = join(directory, 'told');
  const words = [python, fixture('after.py'), told, lease, ...rest];
  const job = emptyJobFile(directory);
  const launcher = ['--job', job, '--inherited', lock, '--log', `${join(directory, 'output')}=1000000`];
  const found = (): Found[] =>
    (existsSync(told) ? readFileSync(told, 'utf8') : '')
      .split('\n')
      .slice(0, -1)
      .map((line) => JSON.parse(line));
  const options = words.flatMap((word) => ['--then', word]);
  return { directory, job, found, run: { leases: [lease], launcher, options }, words };
}

/** Waits for it, and that it isn't started twice. */
async function once(found: () => Found[]): Promise<Found> {
  await until(() => found().length > 0, 'what is started after the job');
  await sleep(100);
  expect(found()).toHaveLength(1);
  return found()[0] as Found;
}

test.each([['true'], ['sh', '-c', 'exit 7'], ['pyhton']])(
  'a program is started after a job, and has nothing of it: %s %s %s',
  async (...words) => {
    const command = words.filter((word) => word !== undefined);
    const { found, run, words: then } = withAfter('two words', '');
    const setup = ['--setup', 'signal.signal(signal.SIGTERM, signal.SIG_IGN)'];
    const options = [...run.options, '--ignore-signals', '4001'];
    await complete({ ...run, options, launcher: [...run.launcher, ...setup], command });
    expect(await once(found)).toEqual({
      descriptors: [0, 1, 2],
      standard: ['/dev/null', '/dev/null', '/dev/null'],
      leads: true,
      blocked: [],
      ignored: [],
      held: false,
      arguments: then.slice(2),
    });
  },
);

test('nobody waits for what is started after a job', async () => {
  const { directory, found, run } = withAfter('/nonexistent/go');
  const { code } = await complete({ ...run, command: ['true'] }); // and its standard output is closed
  expect(code).toBe(0);
  await once(found);
  expect(existsSync(directory)).toBe(true); // the job ends with this
});

test('what is started after a job is started once, whatever is killed', async () => {
  for (let i = 0; i < 8; i++) {
    const { directory, job, found, run } = withAfter();
    const command = ['sh', '-c', 'echo $$ >"$0/pid"; exec sleep 600', directory];
    const running = launch({ ...run, command });
    const pid = await pidIn(directory, 'pid');
    const keeper = await restingKeeperOf(running.pid);
    if (i % 4 === 0) running.kill('SIGKILL');
    if (i % 4 === 1) sendSignal(keeper, 'SIGKILL');
    if (i % 4 === 2) running.kill('SIGSTOP');
    sendSignal(pid, 'SIGTERM');
    if (i % 4 === 3) {
      await until(() => jobState(job).ended !== null, 'the end');
      sendSignal(keeper, 'SIGKILL');
    }
    await running.exited;
    expect((await once(found)).held).toBe(false);
  }
});

test('a program that can’t be started after a job harms nothing', async () => {
  const { directory, leases } = workspace();
  const options = ['--then', join(directory, 'missing'), '--then', 'x'];
  expect(await complete({ leases, options, command: ['sh', '-c', 'exit 7'] })).toMatchObject({
    code: 7,
    stderr: '',
  });
});

test('nothing is started while processes of the job live', async () => {
  const { directory, found, run } = withAfter();
  const command = [python, fixture('job.py'), directory, 'daemon'];
  const { code } = await complete({ ...run, command });
  expect(code).toBe(0);
  await sleep(100);
  expect(found()).toEqual([]);
  sendSignal(await pidIn(directory, 'daemon-child'), 'SIGKILL');
  expect((await once(found)).held).toBe(false);
});

const KIB = 1024;
const MIB = 1024 * KIB;
const onDisk = (file: string) => statSync(file).blocks * 512;

/** A command that writes `size` bytes to its output, and then stays or ends. */
function output(size: number, options: string[], limit: number, rest = '') {
  const { directory, leases } = workspace();
  const file = join(directory, 'output');
  const source = `import os, sys
block = b''.join(b'%07d\\n' % i for i in range(${size} // 8))
os.write(1, block)${rest}`;
  const launcher = [
    '--log',
    `${file}=${limit}`,
    '--setup',
    `os.dup2(os.open(${JSON.stringify(file)}, os.O_WRONLY | os.O_APPEND), 1)`,
  ];
  return { file, run: { leases, launcher, options, command: [python, '-c', source] } };
}

const whole = (size: number) =>
  Buffer.from(Array.from({ length: size / 8 }, (_, i) => `${String(i).padStart(7, '0')}\n`).join(''));

function expectTrimmed(file: string, size: number, limit: number) {
  expect(onDisk(file)).toBeLessThanOrEqual(limit);
  const [before, after] = [whole(size), readFileSync(file)];
  expect(after.length).toBe(size);
  expect(after.subarray(0, 64 * KIB).equals(before.subarray(0, 64 * KIB))).toBe(true);
  expect(after.subarray(size - limit / 2).equals(before.subarray(size - limit / 2))).toBe(true);
  expect(after.subarray(64 * KIB, 128 * KIB).every((byte) => byte === 0)).toBe(true);
}

const canCut = makesHoles(workspace().directory);

test.runIf(canCut)('the middle of an output that takes too much is freed while the job runs', async () => {
  const { file, run } = output(8 * MIB, ['--recheck', '20'], MIB, '\nimport time; time.sleep(600)');
  const running = launch(run);
  await until(() => existsSync(file) && statSync(file).size === 8 * MIB && onDisk(file) <= MIB, 'the hole');
  expectTrimmed(file, 8 * MIB, MIB);
  running.kill('SIGTERM');
  await running.exited;
});

test.runIf(canCut)('the middle of an output that takes too much is freed at the end of the job', async () => {
  const { file, run } = output(8 * MIB, [], MIB);
  expect((await complete(run)).code).toBe(0);
  expectTrimmed(file, 8 * MIB, MIB);
});

test('an output that takes less is left alone', async () => {
  const { file, run } = output(MIB, ['--recheck', '20'], 2 * MIB, '\nimport time; time.sleep(0.2)');
  await complete(run);
  expect(readFileSync(file).equals(whole(MIB))).toBe(true);
});

test.each([
  ['a device', "os.open('/dev/null', os.O_RDWR)"],
  ['a pipe', 'os.pipe()[1]'],
  ['a directory', "os.open('/tmp', os.O_RDONLY)"],
  ['read-only', "os.open('/etc/passwd', os.O_RDONLY)"],
])('what can’t be a job’s output is refused: %s', async (_, open) => {
  const setup = `fd = ${open}; os.set_inheritable(fd, True); options += ['--log', f'{fd}:1000']`;
  const ended = await complete({ launcher: ['--setup', setup], command: ['true'] });
  expect(ended.code).toBe(64);
  expect(ended.stderr).toMatch(
    /--log needs FD:BYTES of a regular file with one name, open for writing, not '\d+:1000'/,
  );
});
