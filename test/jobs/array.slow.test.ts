// Arrays of jobs: `submit --array`, and what the commands for jobs make of their parts.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { noteCancellation } from '../../lib/jobs/job-control.ts';
import { formatArray, parseArray } from '../../lib/jobs/job-parts.ts';
import type { JobRequest } from '../../lib/jobs/job-record.ts';
import { JobStore } from '../../lib/jobs/job-store.ts';
import { startPart } from '../../lib/jobs/submission.ts';
import { readActivity } from '../../lib/status/index.ts';
import { Machine, python, until } from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';
import { Jobs } from './background.ts';

describe('--array', () => {
  test.each([
    ['0-3', [0, 1, 2, 3], null],
    ['0-9:3%2', [0, 3, 6, 9], 2],
    ['1,3,7', [1, 3, 7], null],
    ['7,1-2,2%1', [1, 2, 7], 1],
    ['5', [5], null],
  ])('%s has these parts', (text, ids, atOnce) => {
    expect(parseArray(text)).toEqual({ ids, atOnce });
  });

  test('takes up to 1,000 parts', () => {
    expect(parseArray('1-1000').ids).toHaveLength(1_000);
    expect(() => parseArray('0-1000')).toThrow(/has more than 1,000 parts; `gpu-owner exp run --grid` runs/);
  });

  test.each(['', '3-1', '0-9:0', 'a', '1-', '0-9%0', '0-9%', '1,,2', '-1', '0-9%2%3'])(
    '%j is refused with examples',
    (text) => {
      expect(() => parseArray(text)).toThrow(/^--array: .*; use 0-99, 0-99:2, 1,3,7, and %4/);
    },
  );

  test('some parts are written as it takes them', () => {
    expect(formatArray([1, 3, 4, 5, 9], 2)).toBe('1,3-5,9%2');
    expect(parseArray(formatArray([1, 3, 4, 5, 9], 2))).toEqual({ ids: [1, 3, 4, 5, 9], atOnce: 2 });
  });
});

describe('an array', () => {
  let machine: Machine;
  let jobs: Jobs;
  let here: string;
  beforeEach(() => {
    machine = new Machine(2);
    here = join(machine.directory, 'here');
    mkdirSync(here);
    jobs = new Jobs(machine, { cwd: here });
  });
  afterEach(async () => {
    await jobs.end();
    await machine.close();
  });

  /** A part notes that it has begun, and goes on when there is a file with its number. */
  const HELD =
    'echo "part $GPU_OWNER_ARRAY_ID"; touch begun-$GPU_OWNER_ARRAY_ID; until [ -e go-$GPU_OWNER_ARRAY_ID ] || [ -e go ]; do sleep 0.05; done; [ ! -e fail-$GPU_OWNER_ARRAY_ID ] || exit 7';
  const STUBBORN =
    'import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); open("begun-" + os.environ["GPU_OWNER_ARRAY_ID"], "w"); time.sleep(600)';
  const begun = () =>
    readdirSync(here)
      .filter((name) => name.startsWith('begun-'))
      .sort();
  const touch = (...names: string[]) => {
    for (const name of names) writeFileSync(join(here, name), '');
  };
  const part = (word: string) => jobs.details(word);

  /** Names of jobs in the report of usage. */
  const reported = async () => {
    const { stdout } = await jobs.run(['report', '--by', 'job', '--json']);
    return JSON.parse(stdout).rows.map(({ key }: { key: string }) => key.replace(/^\w+:/, ''));
  };

  test('runs N parts at a time, each on its own GPU, under one number', async () => {
    touch('go');
    const show =
      'echo "$GPU_OWNER_ARRAY_ID $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT in $PWD: $CUDA_VISIBLE_DEVICES"; ' +
      'echo "$SLURM_ARRAY_JOB_ID: $SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX by $SLURM_ARRAY_TASK_STEP" >slurm';
    const id = await jobs.submit([
      '--array',
      '1,3,7%1',
      '--like-slurm',
      '--name',
      'a',
      '--',
      'sh',
      '-c',
      show,
    ]);
    expect(await jobs.wait(id)).toBe(0);
    expect(readFileSync(join(here, 'slurm'), 'utf8')).toBe(`${id}: 1 to 7 by 2\n`);
    expect(await jobs.find(id)).toMatchObject({
      array: null,
      parts: '1,3,7%1',
      progress: { done: 3, total: 3 },
      state: 'completed',
    });
    expect(await jobs.logs(`${id}_7`)).toMatch(new RegExp(`^7 7 of 3 in ${here}: GPU-[0-9a-f-]+\\n$`));
    expect(await jobs.logs(`${id}_7`, '-n', '1')).toMatch(/^7 7 of 3/);
    expect(await jobs.logs(id)).toBe('3 parts: 3 completed, 0 failed, 0 cancelled\n');
    const array = { id, index: 3 };
    expect(await part(`${id}_3`)).toMatchObject({ array, name: 'a', state: 'completed', exitCode: 0 });
    const { code, stderr } = await jobs.run(['logs', `${id}_2`]);
    expect({ code, stderr }).toEqual({
      code: 64,
      stderr: `gpu-owner: job ${id} has no part 2; its parts are 1,3,7%1\n`,
    });
    expect((await reported()).sort()).toEqual(
      await Promise.all([1, 3, 7].map(async (n) => `${(await part(`${id}_${n}`)).id} a`)),
    );
    // The name means the array, and ended parts are old jobs.
    expect(JSON.parse((await jobs.run(['jobs', 'a', '--json'])).stdout)).toMatchObject([
      { id, parts: '1,3,7%1' },
    ]);
    expect(JSON.parse((await jobs.run(['jobs', '--json'])).stdout)).toMatchObject([{ id }]);
  });

  test('has each of its parts wait in the queue like a job of its own, never more than two', async () => {
    const id = await jobs.submit(['--array', '0-9', '--', 'sh', '-c', HELD]);
    await until(() => begun().length === 2);
    const waiting = () => readActivity(machine.lockDirectory).waiting.length;
    await until(() => waiting() === 2);
    touch('go-0', 'go-1');
    // A part that begins leaves the queue a moment later.
    await until(async () => begun().length === 4 && (await jobs.list()).length === 1 + 6);
    await until(() => waiting() === 2);
    expect(await jobs.list()).toHaveLength(1 + 6);
    touch('go');
    expect(await jobs.wait(id)).toBe(0);
    expect(begun()).toHaveLength(10);
  });

  test('lets parts be seen, waited for and cancelled one by one, and the failed ones run again', async () => {
    touch('fail-0');
    const id = await jobs.submit(['--array', '0-4', '--', 'sh', '-c', HELD]);
    await until(() => begun().length === 2);
    expect(await part(`${id}_0`)).toMatchObject({
      state: 'running',
      exitCode: null,
      gpus: [{ index: expect.any(Number) }],
    });
    const shown = await jobs.run(['jobs', `${id}_4`, '--json']);
    expect(JSON.parse(shown.stdout)).toMatchObject([{ state: 'waiting', gpus: [] }]);
    expect((await jobs.run(['jobs', `${id}_0`])).stdout).toMatch(new RegExp(`^job +${id}_0$`, 'm'));
    expect((await jobs.run(['cancel', `${id}_1`, `${id}_4`])).code).toBe(0);
    expect(await part(`${id}_1`)).toMatchObject({ state: 'cancelled' });
    expect(await jobs.wait(`${id}_4`)).toBe(143);
    touch('go-0');
    expect(await jobs.wait(`${id}_0`)).toBe(7);
    expect((await jobs.run(['wait', `${id}_2`, '--timeout', '1ms'])).code).toBe(75);
    const cancelled = Number((await jobs.run(['resubmit', `${id}_4`])).stdout);
    expect((await jobs.run(['resubmit', `${id}_2`])).stderr).toMatch(/has not ended; cancel it first/);
    touch('go');
    expect(await jobs.wait(`${id}_2`, `${cancelled}_4`)).toBe(0);
    expect(await jobs.wait(id)).toBe(1);
    expect(await jobs.logs(id)).toMatch(
      new RegExp(
        `^${id}_0 failed with exit code 7$[\\s\\S]*5 parts: 2 completed, 1 failed, 2 cancelled\nfailed: ${id}_0;`,
        'm',
      ),
    );
    expect(begun()).toHaveLength(5);

    const again = Number((await jobs.run(['resubmit', 'failed'])).stdout);
    expect(await jobs.wait(`${again}_0`)).toBe(7); // it fails once, and isn't started again by itself
    expect(await jobs.wait(again)).toBe(1);
    expect(await jobs.find(again)).toMatchObject({ parts: '0', progress: { total: 1 } });
    expect(await jobs.run(['resubmit', 'failed'])).toMatchObject({ code: 0, stdout: `${again + 2}\n` });
  });

  test('is cancelled with all its parts', async () => {
    const id = await jobs.submit(['--array', '0-9', '--', python, '-c', STUBBORN]);
    await until(() => begun().length === 2);
    expect((await jobs.run(['cancel', '--grace', '1s', String(id)])).code).toBe(0);
    expect(new Set((await jobs.list()).map(({ state }) => state))).toEqual(new Set(['cancelled']));
    expect(jobs.processes()).toEqual([]);
    expect(await part(`${id}_9`)).toMatchObject({ state: 'cancelled' });
    expect(await jobs.run(['resubmit', 'failed'])).toMatchObject({ code: 0, stdout: '', stderr: '' });
  });

  test('starts no part that begins just when it is cancelled', async () => {
    const id = await jobs.submit(['--array', '0-3%1', '--', 'sh', '-c', HELD]);
    await until(() => begun().length === 1);
    for (const name of ['GPU_OWNER_SIMULATE', 'GPU_OWNER_SIMULATE_DIR', 'XDG_STATE_HOME'])
      vi.stubEnv(name, machine.env[name]);
    const store = JobStore.open();
    noteCancellation(store, id, { at: Date.now(), reason: null });
    startPart(store, store.read(id)?.request as JobRequest, 3, { GPU_OWNER_ARRAY_ID: 3 });
    vi.unstubAllEnvs();
    expect(await part(`${id}_3`)).toMatchObject({ state: 'cancelled', started: null });
    expect((await jobs.run(['cancel', String(id)])).code).toBe(0);
    expect(begun()).toHaveLength(1);
  });

  test('which is killed is lost, and resubmitted without the completed parts', async () => {
    const id = await jobs.submit(['--array', '0-2%1', '--', 'sh', '-c', HELD]);
    touch('go-0');
    await until(() => begun().length === 2);
    for (const pid of jobs.processes()) sendSignal(pid, 'SIGKILL');
    await jobs.reach(id, 'lost');
    // A killed process holds its locks until the kernel has ended it.
    await expect.poll(() => part(`${id}_1`)).toMatchObject({ state: 'lost' });
    expect(await part(`${id}_2`)).toMatchObject({ state: 'lost' });
    touch('go');
    const again = Number((await jobs.run(['resubmit', 'lost'])).stdout);
    expect(await jobs.wait(again)).toBe(0);
    expect(await jobs.find(again)).toMatchObject({ parts: '1-2%1', state: 'completed' });
  });

  test('has parts that other jobs follow, also before they have begun', async () => {
    const id = await jobs.submit(['--array', '0-3%1', '--', 'sh', '-c', HELD]);
    await until(() => begun().length === 1);
    const follow = (word: string) => jobs.submit(['--after-ok', word, '--', 'true']);
    const good = await follow(`${id}_0-1`);
    const bad = await follow(`${id}_2`);
    expect(await jobs.find(good)).toMatchObject({
      state: 'waiting',
      reason: `after job ${id + 1}, job ${id}_1`,
    });
    touch('go-0');
    await until(() => begun().length === 2);
    expect(await jobs.find(good)).toMatchObject({ state: 'waiting' });
    touch('go-1');
    expect(await jobs.wait(good)).toBe(0);
    touch('fail-2', 'go-2');
    expect(await jobs.wait(bad)).not.toBe(0);
    expect(await jobs.find(bad)).toMatchObject({
      state: 'cancelled',
      reason: `it was to follow job ${id}_2, which failed with exit code 7`,
    });
    touch('go');
    expect(await jobs.wait(id)).toBe(1);
  });

  test('has parts that follow the same parts of another array', async () => {
    const id = await jobs.submit(['--array', '0-2%1', '--', 'sh', '-c', HELD]);
    const second = await jobs.submit(['--array', '0-3', '--after-ok', `${id}_%a`, '--', 'true']);
    expect(await jobs.wait(`${second}_3`)).toBe(0);
    touch('go-0');
    expect(await jobs.wait(`${second}_0`)).toBe(0);
    expect(await part(`${second}_1`)).toMatchObject({ state: 'waiting' });
    touch('fail-1', 'go');
    expect(await jobs.wait(second)).toBe(1);
    const parts = await Promise.all([0, 1, 2, 3].map((index) => part(`${second}_${index}`)));
    const completed = ['completed', null];
    expect(parts.map(({ state, reason }) => [state, reason])).toEqual([
      completed,
      ['cancelled', `it was to follow job ${id}_1, which failed with exit code 7`],
      ...[completed, completed],
    ]);
    const { stderr } = await jobs.run(['submit', '--after-ok', `${id}_%a`, '--', 'true']);
    expect(stderr).toContain('it needs --array and an array before it');
  });

  test('writes the output of each part where --output with %a says, as for Slurm', async () => {
    const output = ['--output', 'log-%x-%A_%a.txt', '--name', 'a'];
    const id = await jobs.submit(['--array', '0-2%1', ...output, '--', 'sh', '-c', HELD]);
    await until(() => begun().length === 1);
    expect(await part(`${id}_0`)).toMatchObject({ output: join(here, `log-a-${id}_0.txt`) });
    expect(await part(`${id}_2`)).toMatchObject({ output: null });
    const followed = jobs.run(['logs', '-f', `${id}_2`, '-n', '1']);
    touch('go', 'fail-2');
    expect(await jobs.wait(id)).toBe(1);
    expect(await followed).toMatchObject({ code: 0, stdout: 'part 2\n', stderr: '' });
    for (const each of [0, 1, 2])
      expect(readFileSync(join(here, `log-a-${id}_${each}.txt`), 'utf8')).toBe(`part ${each}\n`);
    expect((await jobs.run(['submit', '--output', '%a', '--', 'true'])).stderr).toMatch(
      /%a is the number of a part, so it needs --array/,
    );
  });

  test('keeps to limits and to jobs before it', async () => {
    const first = await jobs.submit(['--', 'sh', '-c', 'until [ -e go ]; do sleep 0.05; done']);
    const id = await jobs.submit([
      '--array',
      '0-2',
      '--after',
      String(first),
      '--for',
      '1s',
      '-n',
      '2',
      '--',
      'sh',
      '-c',
      'sleep $((GPU_OWNER_ARRAY_ID * 60))',
    ]);
    expect(await part(`${id}_0`)).toMatchObject({ state: 'waiting' });
    expect((await jobs.run(['cancel', `${id}_2`])).code).toBe(0);
    touch('go');
    expect(await jobs.wait(`${id}_0`)).toBe(0);
    expect(await jobs.wait(`${id}_1`)).toBe(124);
    expect(await part(`${id}_2`)).toMatchObject({ state: 'cancelled', started: null });
  });

  test('is refused where it can never run', async () => {
    const submit = async (...words: string[]) => (await jobs.run(['submit', ...words])).stderr;
    expect(await submit('--array', '0-x', '--', 'true')).toMatch(/is not a list of numbers and ranges/);
    expect(await submit('--array', '0-1', '-n', '3', '--', 'true')).toMatch(/3 GPUs/);
    expect(await submit('--array', '0-1', '--', 'no-such-program')).toMatch(/cannot run 'no-such-program'/);
    expect(await submit('--array', '0-1', '--no-wait', '--', 'true')).toMatch(
      /--no-wait: parts of an array wait for their turn; use --wait=10m/,
    );
    expect(await submit('--like-slurm', '--', 'true')).toMatch(/--like-slurm is for the parts of --array/);
    expect(await jobs.list()).toEqual([]);
  });
});
