// Arrays of jobs: `submit --array`, and what the commands for jobs make of their parts.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { formatArray, type JobStore, parseArray, partsOf } from '../../lib/jobs/index.ts';
import { command, Machine, until } from '../support/machine.ts';
import { sendSignal, whyNoTracing } from '../support/processes.ts';
import { Jobs, type ListedJob } from './background.ts';

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

  test.each(['', '3-1', '0-9:0', 'a', '1-', '0-9%0', '0-9%', '1,,2', '-1', '0-100000', '0-9%2%3'])(
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

test('all jobs are read once, however many words mean parts', () => {
  let reads = 0;
  const read = (id: number) => {
    reads++;
    return id > 3 ? null : { request: { name: id === 1 ? '2_9' : null, array: '0-9' } };
  };
  const store = { ids: () => [1, 2, 3], read } as unknown as JobStore;
  const part = (job: number, number: number) => ({ job, part: number });
  const words = ['2_1', '2_2', '2_9', '3_4', '2_3', '7_1', 'a'];
  expect(partsOf(store, words)).toEqual([part(2, 1), part(2, 2), null, part(3, 4), part(2, 3), null, null]);
  expect(reads).toBe(3 + 3);
});

const canTrace = whyNoTracing() === null;

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
  const begun = () =>
    readdirSync(here)
      .filter((name) => name.startsWith('begun-'))
      .sort();
  const touch = (...names: string[]) => {
    for (const name of names) writeFileSync(join(here, name), '');
  };
  const part = async (word: string) => {
    const { code, stdout, stderr } = await jobs.run(['jobs', word, '--json']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    return JSON.parse(stdout)[0];
  };

  /** Names of jobs in the report of usage. */
  const reported = async () => {
    const { stdout } = await jobs.run(['report', '--by', 'job', '--json']);
    return JSON.parse(stdout).rows.map(({ key }: { key: string }) => key.replace(/^\w+:/, ''));
  };

  test('runs so many parts at a time, each on its own GPU, under one number', async () => {
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
      array: '1,3,7%1',
      progress: { done: 3, total: 3 },
      state: 'completed',
    });
    expect(await jobs.logs(`${id}_7`)).toMatch(new RegExp(`^7 7 of 3 in ${here}: GPU-[0-9a-f-]+\\n$`));
    expect(await jobs.logs(`${id}_7`, '-n', '1')).toMatch(/^7 7 of 3/);
    expect((await jobs.logs(id)).match(/Assigned task \S+ to gpu0/g)).toHaveLength(3);
    expect(await part(`${id}_3`)).toMatchObject({ id, part: 3, state: 'completed', exitCode: 0 });
    expect((await jobs.run(['submit', '--after', `${id}_3`, '--', 'true'])).stderr).toMatch(
      `${id}_3 would be a part of an array, which can't be named here`,
    );
    const { code, stderr } = await jobs.run(['logs', `${id}_2`]);
    expect({ code, stderr }).toEqual({
      code: 64,
      stderr: `gpu-owner: job ${id} has no part 2; its parts are 1,3,7%1\n`,
    });
    expect(await reported()).toEqual([`${id} a`]);
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
    expect(await part(`${id}_4`)).toMatchObject({ state: 'waiting', gpus: [] });
    expect((await jobs.run(['jobs', `${id}_0`])).stdout).toMatch(new RegExp(`^job +${id}_0$`, 'm'));
    expect((await jobs.run(['cancel', `${id}_1`, `${id}_4`])).code).toBe(0);
    expect(await part(`${id}_1`)).toMatchObject({ state: 'cancelled' });
    expect(await jobs.wait(`${id}_4`)).toBe(143);
    touch('go-0');
    expect(await jobs.wait(`${id}_0`)).toBe(7);
    expect((await jobs.run(['wait', `${id}_2`, '--timeout', '1ms'])).code).toBe(75);
    // In the same array, as long as that runs.
    expect(await jobs.run(['resubmit', `${id}_4`])).toMatchObject({ code: 0, stdout: `${id}_4\n` });
    touch('go');
    expect(await jobs.wait(`${id}_2`, `${id}_4`)).toBe(0);
    expect(await jobs.wait(id)).toBe(1);
    expect(await jobs.logs(id)).toMatch(
      new RegExp(`5 parts: 3 completed, 1 failed, 1 cancelled[\\s\\S]*failed: ${id}_0;`),
    );
    expect(begun()).toHaveLength(5);

    const again = Number((await jobs.run(['resubmit', 'failed'])).stdout);
    expect(await jobs.wait(`${again}_0`)).toBe(7); // it fails once, and isn't started again by itself
    expect(await jobs.find(again)).toMatchObject({ array: '0', progress: { total: 1 } });
    expect((await jobs.logs(again)).match(/Assigned/g)).toHaveLength(1);
  });

  test('which is killed is lost, and resubmitted without the completed parts', async () => {
    const id = await jobs.submit(['--array', '0-2%1', '--', 'sh', '-c', HELD]);
    touch('go-0');
    await until(() => begun().length === 2);
    for (const pid of jobs.processes()) sendSignal(pid, 'SIGKILL');
    await jobs.reach(id, 'lost');
    expect(await part(`${id}_1`)).toMatchObject({ state: 'lost' });
    touch('go');
    const again = Number((await jobs.run(['resubmit', 'lost'])).stdout);
    expect(await jobs.wait(again)).toBe(0);
    expect(await jobs.find(again)).toMatchObject({ array: '1-2%1', state: 'completed' });
  });

  test('with cancelled parts alone has nothing to run again', async () => {
    const id = await jobs.submit(['--array', '0-3', '--', 'sh', '-c', HELD]);
    await until(() => begun().length === 2);
    expect((await jobs.run(['cancel', `${id}_1`, `${id}_2`, `${id}_3`])).code).toBe(0);
    touch('go');
    expect(await jobs.wait(id)).toBe(1);
    expect(await reported()).toEqual([`${id} sh`]);
    expect(await jobs.run(['resubmit', 'failed'])).toMatchObject({ code: 0, stdout: '', stderr: '' });
    expect(await jobs.list()).toHaveLength(1);
  });

  test('is waited for and cancelled beside other jobs, within one time limit', async () => {
    const id = await jobs.submit(['--array', '0-2%2', '--', 'sh', '-c', HELD]);
    await until(() => begun().length === 2);
    const other = String(await jobs.submit(['--', 'sleep', '600']));
    const words = [`${id}_2`, other, `${id}_0`, `${id}_1`];
    const start = performance.now();
    expect((await jobs.run(['wait', ...words, '--timeout', '3s'])).code).toBe(75);
    expect(performance.now() - start).toBeLessThan(5_500);
    expect((await jobs.run(['cancel', ...words])).code).toBe(0);
    const { stdout } = await jobs.run(['jobs', ...words, '--json']);
    expect(JSON.parse(stdout).map(({ id, part, state }: ListedJob) => [id, part, state])).toEqual([
      [id, 2, 'cancelled'],
      [Number(other), undefined, 'cancelled'],
      [id, 0, 'cancelled'],
      [id, 1, 'cancelled'],
    ]);
    expect((await jobs.run(['wait', ...words])).stderr.split('\n').map((line) => line.split(' ')[2])).toEqual(
      [...words, undefined],
    );
  });

  test('writes the output of each part where --output with %a says, as for Slurm', async () => {
    const output = ['--output', 'log-%x-%A_%a.txt', '--name', 'a'];
    const id = await jobs.submit(['--array', '0-2%1', ...output, '--', 'sh', '-c', HELD]);
    await until(() => begun().length === 1);
    expect(await part(`${id}_0`)).toMatchObject({ output: join(here, `log-a-${id}_0.txt`) });
    expect(await part(`${id}_2`)).toMatchObject({ output: null });
    const words = [process.execPath, command, 'logs', '-f', `${id}_2`, '-n', '1'];
    const trace = join(machine.directory, 'trace');
    const tracer = ['strace', '-f', '-qq', '-e', 'trace=openat', '-o', trace];
    writeFileSync(trace, '');
    const followed = machine.run(canTrace ? [...tracer, ...words] : words);
    // While nothing happens to it, the queue isn't opened: each look that opens it opens the job three times.
    const opened = (file: string, text: string) => text.split(`/${file}", `).length - 1;
    const looksOnly = () =>
      readFileSync(trace, 'utf8')
        .split('/queue.db-lock", ')
        .some((text) => opened(`${id}/job`, text) >= 8);
    if (canTrace) await until(looksOnly, 'looks without the queue');
    touch('go', 'fail-2');
    expect(await jobs.wait(id)).toBe(1);
    expect(await followed).toMatchObject({ code: 0, stdout: 'part 2\n', stderr: '' });
    for (const each of [0, 1, 2])
      expect(readFileSync(join(here, `log-a-${id}_${each}.txt`), 'utf8')).toBe(`part ${each}\n`);
    expect(await jobs.logs(id)).toContain(`${id}_2 failed on gpu0: exit code 7: part 2`);
    expect((await jobs.run(['submit', '--output', '%a', '--', 'true'])).stderr).toMatch(
      /%a is the number of a part, so it needs --array/,
    );
  });

  test('has parts on shares of a GPU, which are no MIG instances', async () => {
    const id = await jobs.submit(['--array', '0-1', '--memory', '1GiB', '--', 'sh', '-c', HELD]);
    await until(() => begun().length === 2);
    for (const word of [`${id}_0`, `${id}_1`]) {
      const { gpus } = await part(word);
      expect(gpus).toEqual([{ index: 0, uuid: expect.stringMatching(/^GPU-/) }]);
    }
    touch('go');
    expect(await jobs.wait(id)).toBe(0);
  });

  test('keeps to limits and to jobs before it', async () => {
    const first = await jobs.submit(['--', 'sh', '-c', 'until [ -e go ]; do sleep 0.05; done']);
    const id = await jobs.submit([
      '--array',
      '0-1',
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
    expect((await jobs.run(['cancel', `${id}_0`])).stderr).toMatch(/has not begun/);
    touch('go');
    expect(await jobs.wait(`${id}_0`)).toBe(0);
    expect(await jobs.wait(`${id}_1`)).toBe(124);
  });

  test('is refused where it can never run', async () => {
    const submit = async (...words: string[]) => (await jobs.run(['submit', ...words])).stderr;
    expect(await submit('--array', '0-x', '--', 'true')).toMatch(/is not a list of numbers and ranges/);
    expect(await submit('--array', '0-1', '-n', '3', '--', 'true')).toMatch(/3 GPUs/);
    expect(await submit('--array', '0-1', '--', 'no-such-program')).toMatch(/cannot run 'no-such-program'/);
    expect(await submit('--array', '0-1', '--no-wait', '--', 'true')).toMatch(
      /--no-wait is for a single job/,
    );
    expect(await submit('--array', '0-1', '--idle', '30m', '--', 'true')).toMatch(
      /--idle is for a single job/,
    );
    expect(await submit('--like-slurm', '--', 'true')).toMatch(/--like-slurm is for the parts of --array/);
    expect(await jobs.list()).toEqual([]);
  });
});
