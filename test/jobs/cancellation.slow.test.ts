// A job that its user cancels: a signal with a number of ms, queued for the keeper or the front.
import { execFileSync } from 'node:child_process';
import { readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { errno, native } from '../../lib/native.ts';
import {
  fixture,
  isAlive,
  keeperOf,
  launch,
  Probe,
  pidIn,
  python,
  type Running,
  restingKeeperOf,
  stubbornPids,
  until,
  workspace,
} from '../support/keeper.ts';
import { processState, sendSignal, signalLiving } from '../support/processes.ts';
import { emptyJobFile, jobState } from './job-state.ts';

const probe = new Probe();

const CANCEL = 63; // SIGRTMAX - 1
const SI_QUEUE = -1;
const SI_USER = 0;
const SI_TKILL = -6;
const EPERM = 1;
/** As long as a test may take: what ends sooner has not waited for SIGKILL. */
const NEVER = 600_000;

/** @returns 0 or an errno */
function queue(pid: number, signal: number, value: number, ...rest: [code?: number, uid?: number]): number {
  const args = [pid, signal, value, ...rest].map(String);
  return Number(execFileSync(python, [fixture('queue_signal.py'), ...args], { encoding: 'utf8' }));
}

const cancel = (pid: number, grace: number) => expect(queue(pid, CANCEL, grace)).toBe(0);

/** A shell that ends on SIGTERM with code 3, and has told so. */
const POLITE = 'trap "echo term; exit 3" TERM; echo ready; while :; do sleep 0.02; done';

interface Job {
  running: Running;
  keeper: number;
  directory: string;
  file: string;
  lease: string;
}

async function start(
  command: (directory: string) => string[],
  options: string[] = [],
  launched: string[] = [],
): Promise<Job> {
  const { directory, leases } = workspace();
  const file = emptyJobFile(directory);
  const launcher = ['--job', file, ...launched];
  const running = launch({ leases, launcher, options, command: command(directory) });
  await until(() => jobState(file).pid !== undefined, 'the start of the command');
  return {
    running,
    keeper: await restingKeeperOf(running.pid),
    directory,
    file,
    lease: leases[0] as string,
  };
}

const ends = (job: Job, end: object) => {
  expect(jobState(job.file)).toMatchObject({ cancelled: true, timeLimit: false, ...end });
  expect(jobState(job.file).ended).toBeGreaterThan(0);
};

const stubborn = (directory: string) => [python, fixture('stubborn.py'), directory];

test.each(['keeper', 'front'] as const)('a job is cancelled by a signal to its %s', async (receiver) => {
  const job = await start(() => ['sleep', '600']);
  cancel(receiver === 'keeper' ? job.keeper : job.running.pid, NEVER);
  expect((await job.running.exited).code).toBe(143);
  expect(job.running.stderr).toBe(
    'gpu-owner: cancelled: sleep and all its processes get SIGTERM, and after 600 s SIGKILL\n',
  );
  ends(job, { exitCode: 143, signal: 15 });
  expect(await probe.isHeld(job.lease)).toBe(false);
});

test.each(['keeper', 'front'] as const)(
  'a command that ends by itself on SIGTERM keeps its own exit code (%s)',
  async (receiver) => {
    const job = await start(() => ['sh', '-c', POLITE]);
    await job.running.printed(/ready/);
    cancel(receiver === 'keeper' ? job.keeper : job.running.pid, NEVER);
    expect((await job.running.exited).code).toBe(3);
    await job.running.printed(/term/);
    ends(job, { exitCode: 3, signal: null });
  },
);

test.each([0, 300])('nothing is left of a job that does not end by SIGTERM, after %i ms', async (grace) => {
  const job = await start(stubborn);
  const pids = await stubbornPids(job.directory);
  cancel(job.keeper, grace);
  expect((await job.running.exited).code).toBe(137);
  expect(pids.filter(isAlive)).toEqual([]);
  expect(await probe.isHeld(job.lease)).toBe(false);
  ends(job, { exitCode: 137, signal: 9 });
  expect(job.running.stderr).toMatch(grace ? /SIGTERM, and after 300 ms SIGKILL\n$/ : /get SIGKILL\n$/);
});

test('processes that respawn at each SIGTERM are gone', async () => {
  const job = await start((directory) => [python, fixture('job.py'), directory, 'respawning', '--stay']);
  await pidIn(job.directory, 'respawning-staying');
  cancel(job.keeper, 100);
  await job.running.exited;
  expect(await probe.isHeld(job.lease)).toBe(false);
  ends(job, { exitCode: 143 });
});

test('a cancellation ends the orphans of a command', async () => {
  const script = '"$@"; code=$?; while [ ! -e "$0/go" ]; do sleep 0.02; done; exit $code';
  const job = await start((directory) => ['sh', '-c', script, directory, ...stubborn(directory), '5']);
  const [, ...left] = await stubbornPids(job.directory);
  writeFileSync(join(job.directory, 'go'), '');
  expect((await job.running.exited).code).toBe(5);
  expect(jobState(job.file)).toMatchObject({ exitCode: 5, ended: null, cancelled: false });
  cancel(job.keeper, 100);
  await probe.free(job.lease);
  expect(left.filter(isAlive)).toEqual([]);
  ends(job, { exitCode: 5 });
});

test('a job that is suspended is cancelled', async () => {
  const job = await start(() => ['sh', '-c', POLITE]);
  await job.running.printed(/ready/);
  signalLiving(jobState(job.file).pid as number, 'SIGSTOP');
  await until(() => processState(job.running.pid) === 'T', 'the stopped front');
  cancel(job.keeper, NEVER);
  expect((await job.running.exited).code).toBe(3);
});

test('with `--cancel command`, SIGTERM is for the command alone, and SIGKILL for all', async () => {
  const script =
    'sh -c \'trap "echo child" TERM; echo $$ >"$0/child"; while :; do sleep 0.02; done\' "$0" & trap "echo term; exit 3" TERM; echo ready; while :; do sleep 0.02; done';
  const job = await start((directory) => ['sh', '-c', script, directory], ['--cancel', 'command']);
  await job.running.printed(/ready/);
  const child = await pidIn(job.directory, 'child');
  cancel(job.running.pid, 1_000);
  await job.running.printed(/term/);
  expect((await job.running.exited).code).toBe(3);
  expect(job.running.stdout).toBe('ready\nterm\n');
  expect(isAlive(child)).toBe(false);
  expect(job.running.stderr).toMatch(
    /cancelled: sh gets SIGTERM, and after 1 s all its processes get SIGKILL\n$/,
  );
});

test('a job ends if its keeper is killed before, during or after its cancellation', async () => {
  for (const [i, order] of ['killed, told', 'told, killed', 'front told, killed'].entries()) {
    const job = await start(stubborn);
    const pids = await stubbornPids(job.directory);
    if (order === 'killed, told') {
      sendSignal(job.keeper, 'SIGKILL');
      await until(() => jobState(job.file).keeper === job.running.pid, 'the front in the file');
      cancel(job.running.pid, 100);
    } else {
      cancel(order === 'told, killed' ? job.keeper : job.running.pid, 2_000);
      // Told, it is killed at another moment each time.
      if (i > 1) await until(() => jobState(job.file).cancelled, 'the cancellation');
      else await until(() => job.running.stderr.includes('cancelled'), 'the message');
      sendSignal(job.keeper, 'SIGKILL');
    }
    expect((await job.running.exited).code).toBe(137);
    expect(pids.filter(isAlive)).toEqual([]);
    expect(await probe.isHeld(job.lease)).toBe(false);
    ends(job, { exitCode: 137 });
  }
});

test('a job whose front is killed is cancelled', async () => {
  const job = await start(stubborn);
  const pids = await stubbornPids(job.directory);
  job.running.kill('SIGKILL');
  await job.running.exited;
  cancel(job.keeper, 100);
  await probe.free(job.lease);
  expect(pids.filter(isAlive)).toEqual([]);
  ends(job, { exitCode: 137 });
});

test('other values, other ways to send and other senders cancel nothing', async () => {
  const job = await start(() => ['sleep', '600']);
  const targets = [job.keeper, job.running.pid];
  for (const pid of targets) {
    for (const value of [-1, 3_600_001, -2147483648, 2147483647]) expect(queue(pid, CANCEL, value)).toBe(0);
    expect(queue(pid, CANCEL - 1, 0)).toBe(0);
    // The kernel refuses the pretence that a signal to another process came from kill().
    expect(queue(pid, CANCEL, 0, SI_USER)).toBe(EPERM);
    expect(queue(pid, CANCEL, 0, SI_TKILL)).toBe(EPERM);
    execFileSync('kill', ['-s', String(CANCEL), String(pid)]);
    expect(queue(pid, CANCEL, 0, SI_QUEUE, 64_997)).toBe(0);
    expect(queue(pid, CANCEL, 0, -2)).toBe(0);
  }
  await sleep(300);
  expect(jobState(job.file)).toMatchObject({ cancelled: false, ended: null });
  expect(job.running.stderr).toBe('');
  cancel(job.keeper, 3_600_000);
  expect((await job.running.exited).code).toBe(143);
});

test.runIf(process.getuid?.() === 0)('another user can’t cancel a job', async () => {
  const job = await start(() => ['sleep', '600']);
  const source = `import ctypes, os, sys; os.setuid(64997); sys.argv = ['', '${job.keeper}', '${CANCEL}', '0']
exec(sys.stdin.read())`;
  const said = execFileSync(python, ['-c', source], {
    input: readFileSync(fixture('queue_signal.py')),
    encoding: 'utf8',
  });
  expect(said.trim()).toBe(String(EPERM));
  expect(jobState(job.file)).toMatchObject({ cancelled: false, ended: null });
  job.running.kill('SIGTERM');
  await job.running.exited;
});

test('a cancellation at any moment of the start or the end harms nothing', async () => {
  for (let i = 0; i < 12; i++) {
    const { directory, leases } = workspace();
    const launcher = ['--job', emptyJobFile(directory)];
    const running = launch({ leases, launcher, command: i % 2 ? ['true'] : ['sleep', '600'] });
    const ended = running.exited.then(() => 0);
    const keeper = await Promise.race([keeperOf(running.pid).catch(() => 0), ended]);
    if (keeper) queue(i % 3 ? keeper : running.pid, CANCEL, 0);
    const { code } = await running.exited;
    expect(i % 2 ? [0, 137] : [137]).toContain(code);
    expect(await probe.isHeld(leases[0] as string)).toBe(false);
  }
});

test('a job is identified by its locked byte before it is cancelled', async () => {
  const { directory } = workspace();
  const lock = join(directory, 'lock');
  writeFileSync(lock, '');
  const { dev, ino } = statSync(lock);
  const byte = 7;
  const setup = `fd = os.open(${JSON.stringify(lock)}, os.O_RDWR); os.set_inheritable(fd, True); options += ['--inherited', str(fd)]
fcntl.fcntl(fd, F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, os.SEEK_SET, ${byte}, 1, 0))`;
  const job = await start(stubborn, [], ['--setup', setup]);
  const [command = 0, daemon = 0] = await stubbornPids(job.directory);
  const prove = (pid: number, at = byte) => native().processSignal(pid, dev, ino, at, 0, 0);
  expect([job.keeper, job.running.pid, command].map((pid) => prove(pid))).toEqual([0, 0, 0]);
  expect(prove(daemon)).toBe(-errno.ESRCH); // the daemon has no descriptors
  expect(prove(process.pid)).toBe(-errno.ESRCH);
  expect(prove(job.keeper, byte + 1)).toBe(-errno.ESRCH);
  expect(native().processSignal(job.keeper, dev, ino + 1, byte, CANCEL, 0)).toBe(-errno.ESRCH);
  expect(jobState(job.file).cancelled).toBe(false);
  expect(native().processSignal(job.keeper, dev, ino, byte, CANCEL, 100)).toBe(0);
  expect((await job.running.exited).code).toBe(137);
  ends(job, { exitCode: 137 });
  expect(prove(job.keeper)).toBe(-errno.ESRCH);
});
