import { existsSync, mkdirSync, readFileSync, statSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, test } from 'vitest';
import { finished, type Machine, output, until } from '../support/machine.ts';
import { processState, signalLiving } from '../support/processes.ts';
import { soakTest } from '../support/time.ts';
import { configured, type Jobs, jobTest, type ListedJob, makesHoles } from './background.ts';

let machine: Machine;
let jobs: Jobs;
jobTest((opened) => {
  ({ machine, jobs } = opened);
});

const path = (name: string) => join(machine.directory, name);
const states = async () => (await jobs.list()).map(({ id, state }: ListedJob) => `${id} ${state}`);

/** Submits jobs, each after the end of the one before. */
async function submitAll(count: number, ...words: string[]): Promise<void> {
  for (let i = 0; i < count; i++) expect(await jobs.wait(await jobs.submit(words))).toBe(0);
}

describe('old jobs are removed', () => {
  test('by their number: not those that live', async () => {
    jobs = configured(machine, 'jobsKept: 3\n');
    await jobs.submit(['--', ...machine.untilFile('go')]);
    await jobs.reach(1, 'running');
    await submitAll(6, 'true');
    expect(await states()).toEqual(['1 running', '5 completed', '6 completed', '7 completed']);
    expect([1, 2, 3, 4, 5].map((id) => existsSync(jobs.directoryOf(id)))).toEqual([
      true,
      ...Array(3).fill(false),
      true,
    ]);
    machine.touch('go');
    await jobs.wait(1);
    await submitAll(1, 'true');
    expect(await states()).toEqual(['6 completed', '7 completed', '8 completed']);
  });

  test('by the time since their end: neither those that live, nor one that took long', async () => {
    jobs = configured(machine, 'jobsKeptFor: 1h\n');
    const age = (...names: string[]) => {
      const time = Date.now() / 1_000 - 2 * 3_600;
      for (const name of names) utimesSync(join(jobs.directoryOf(1), '..', name), time, time);
    };
    await submitAll(1, 'true');
    await jobs.submit(['--', ...machine.untilFile('go')]);
    await jobs.submit(['--', ...machine.untilFile('never')]);
    await jobs.reach(2, 'running');
    await jobs.reach(3, 'running');
    // Two that were never finished: one of a `submit` that was killed long ago, and one that is being made.
    for (const id of [5, 6]) mkdirSync(jobs.directoryOf(id));
    age('1', '1/job', '2', '2/job', '3', '3/job', '5');
    machine.touch('go');
    await jobs.wait(2);
    expect(await jobs.submit(['true'])).toBe(7);
    await jobs.wait(7);
    expect(await states()).toEqual(['2 completed', '3 running', '7 completed']);
    expect([5, 6].map((id) => existsSync(jobs.directoryOf(id)))).toEqual([false, true]);
    age('2/job', '7', '7/job');
    await submitAll(1, 'true');
    expect(await states()).toEqual(['3 running', '8 completed']);
  });

  soakTest('by the size of their output: the oldest first, and not the newest, however large', async () => {
    jobs = configured(machine, 'jobLogsSize: 2560KiB\n');
    await submitAll(4, '--', 'head', '-c', '1M', '/dev/zero');
    expect(await states()).toEqual(['2 completed', '3 completed', '4 completed']);
    // Elsewhere, it is the user's own.
    await submitAll(1, '--output', path('large'), '--', 'head', '-c', '8M', '/dev/zero');
    expect(await states()).toEqual(['3 completed', '4 completed', '5 completed']);
    await submitAll(1, '--', 'head', '-c', '8M', '/dev/zero');
    expect(await states()).toEqual(['3 completed', '4 completed', '5 completed', '6 completed']);
    await submitAll(1, 'true');
    expect(await states()).toEqual(['7 completed']);
    expect(statSync(path('large')).size).toBe(8 * 2 ** 20);
  });

  test('not those that others are to follow, however few are kept', async () => {
    jobs = configured(machine, 'jobsKept: 2\n');
    await submitAll(1, 'true');
    await jobs.submit(['-n2', '--', ...machine.untilFile('go')]);
    await jobs.reach(2, 'running');
    await jobs.submit(['--after-ok=1,2', '--', 'touch', path('following')]);
    for (let i = 0; i < 3; i++) await jobs.submit(['true']);
    machine.touch('go');
    await until(() => existsSync(path('following')) && jobs.processes().length === 0);
    await submitAll(1, 'true');
    expect(await states()).toEqual(['6 completed', '7 completed']);
  });
});

describe('of a large output, the middle is cut out', () => {
  const LIMIT = 2 ** 20;
  const SIZE = 8 * 2 ** 20;
  const HEAD = 64 * 1024;
  const LINE = 8;
  const lines = Array.from({ length: SIZE / LINE }, (_, i) => `${String(i).padStart(LINE - 1, '0')}\n`).join(
    '',
  );
  const writing = `seq -f %0${LINE - 1}.0f 0 ${SIZE / LINE - 1}`;
  const cut = 'bytes of output were not kept here';

  beforeEach(() => {
    jobs = configured(machine, `jobLogSize: ${LIMIT}\n`);
  });

  test('and logs says so: whole, from a line on, and its last lines', async ({ skip }) => {
    if (!makesHoles(machine.directory)) skip('the file system frees no part of a file');
    await jobs.submit(['--', 'sh', '-c', `${writing}; exit 5`]);
    expect(await jobs.wait(1)).toBe(5);
    expect(await jobs.find(1)).toMatchObject({ state: 'failed', exitCode: 5 });
    await until(() => jobs.processes().length === 0); // the output is cut once more at the end
    expect(statSync(join(jobs.directoryOf(1), 'output')).blocks * 512).toBeLessThanOrEqual(LIMIT);

    // Half of the limit was kept each time that it was cut.
    const file = readFileSync(join(jobs.directoryOf(1), 'output'), 'latin1');
    const tail = file.slice(file.lastIndexOf('\0') + 1);
    expect(lines.endsWith(tail)).toBe(true);
    expect(tail.length).toBeGreaterThanOrEqual(LIMIT / 2);
    const dropped = SIZE - HEAD - tail.length;
    const print = async (expected: string, ...options: string[]) => {
      const { code, stdout, stderr } = await jobs.run(['logs', ...options, '1']);
      expect({ code, isSame: stdout === expected, stderr }).toEqual({
        code: 0,
        isSame: true,
        stderr: `gpu-owner: ${dropped} ${cut}\n`,
      });
    };
    await print(lines.slice(0, HEAD) + tail);
    expect(await jobs.logs(1, '-n', '3')).toBe(lines.slice(-3 * LINE));
    const before = 100;
    const count = tail.length / LINE + before;
    await print(lines.slice(HEAD - before * LINE, HEAD) + tail, '-n', String(count));
  });

  test('also while somebody follows it who is slow', async ({ skip }) => {
    if (!makesHoles(machine.directory)) skip('the file system frees no part of a file');
    await jobs.submit(['--', 'sh', '-c', `echo begun; ${machine.untilFile('go')[2]}; ${writing}; exit 5`]);
    const following = machine.startCommand(['logs', '-f', '1']);
    const followed = finished(following);
    await output(following, /begun/);
    signalLiving(following.pid, 'SIGSTOP');
    await until(() => processState(following.pid as number) === 'T');
    machine.touch('go');
    expect(await jobs.wait(1)).toBe(5);
    await until(() => jobs.processes().length === 0); // the output is cut once more at the end
    signalLiving(following.pid, 'SIGCONT');
    const { code, stdout, stderr } = await followed;
    const file = readFileSync(join(jobs.directoryOf(1), 'output'), 'latin1');
    expect(file.length).toBe(SIZE + 6);
    const kept = `${file.slice(0, HEAD)}${file.slice(file.lastIndexOf('\0') + 1)}`;
    expect(kept.length).toBeLessThan(LIMIT);
    expect({ code, isWhole: stdout === kept, stderr }).toEqual({
      code: 0,
      isWhole: true,
      stderr: `gpu-owner: ${file.length - kept.length} ${cut}\n`,
    });
  });

  test('and not of one that goes to a file of the user’s', async () => {
    await jobs.submit(['--output', path('own'), '--', 'sh', '-c', writing]);
    expect(await jobs.wait(1)).toBe(0);
    expect(readFileSync(path('own'), 'latin1') === lines).toBe(true);
    expect((await jobs.logs(1)) === lines).toBe(true);
  });
});
