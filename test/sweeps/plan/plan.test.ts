import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { onWarning } from '../../../lib/platform/system.ts';
import { openSweep, type Sweep } from '../../../lib/sweeps/files/index.ts';
import { type Plan, type PlannedTask, planSweep } from '../../../lib/sweeps/plan/index.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { findCompletedTasks } from '../../../lib/sweeps/tables/find-results.ts';

const WORKER = { name: 'gpu0', host: 'here', pid: process.pid, gpus: ['GPU-0'] };

let project = '';
let queue: Queue;

beforeEach(async () => {
  project = mkdtempSync(join(tmpdir(), 'gpu-owner-plan-'));
  queue = await openQueue(null, project);
});

afterEach(async () => {
  await queue.close();
  rmSync(project, { recursive: true, force: true });
});

function sweepOf(text: string, command: string[] = ['run']): Promise<Sweep> {
  const path = join(project, 'sweep.yaml');
  writeFileSync(path, text);
  return openSweep({ project, files: [path], command });
}

/** The plan for a sweep after others have been enqueued. */
async function planAfter(before: readonly string[], now: string): Promise<Plan> {
  for (const text of before) await queue.enqueue((await sweepOf(text)).tasks());
  return planSweep(await sweepOf(now), { queue });
}

describe('a task that would run', () => {
  test('is told from tasks that are done, run, wait, failed or were cancelled', async () => {
    const seeds = 'p: {combinations: [{seed: [1, 2, 3, 4, 5]}]}';
    await queue.enqueue((await sweepOf(seeds)).tasks());
    const take = async () => (await queue.take(WORKER))?.token ?? '';
    await queue.complete(await take(), { loss: 1 });
    await queue.fail(await take(), { error: 'exit code 1\nmore', retry: false });
    await take();
    await queue.cancel({ ids: ['p_3_4'] });
    const { counts, phases } = await planSweep(await sweepOf(seeds.replace('5]', '5, 6]')), { queue });
    expect(counts).toEqual({
      new: 1,
      pending: 1,
      active: 1,
      completed: 1,
      failed: 1,
      cancelled: 1,
      repeated: 0,
    });
    expect(phases[0]?.next.map(({ name }) => name)).toEqual(['p_4_5', null]);
  });

  test('equal tasks are counted once', async () => {
    const { counts, size } = await planAfter(
      [],
      'p: {combinations: [{a: [1, 2]}]}\nq: {combinations: [{a: [2, 3]}]}',
    );
    expect(size).toBe(4);
    expect(counts).toMatchObject({ new: 3, repeated: 1 });
  });

  test('lines of a file of commands that are repeated are counted', async () => {
    const commands = join(project, 'jobs.txt');
    writeFileSync(commands, 'run a\n\n# run a\nrun b\n run a\nrun b\nrun c');
    const { counts, size } = await planSweep(await openSweep({ project, commands }), { queue: null });
    expect({ counts, size }).toMatchObject({ counts: { new: 3, repeated: 2 }, size: 5 });
  });

  test('a plan can list every task, in order', async () => {
    const all: PlannedTask[] = [];
    await planSweep(await sweepOf('p: {combinations: [{a: [1, 2]}]}'), {
      queue: null,
      onTask: (task) => all.push(task),
    });
    expect(
      all.map(({ parameters, state, outputDirectory }) => [parameters.a, state, outputDirectory]),
    ).toEqual([
      [1, 'new', 'results_p'],
      [2, 'new', 'results_p'],
    ]);
  });

  test('rows that tables have already count as done, with a queue and without', async () => {
    const text = 'p: {lr: 1e-3, combinations: [{a: [1, 2, 3, 4]}]}\nq: {lr: 0.001, combinations: [{a: [4]}]}';
    mkdirSync(join(project, 'results_p'));
    writeFileSync(
      join(project, 'results_p/final_results.csv'),
      'a,lr,loss\r\n1.0,0.001,5\r\n7,0.001,5\r\n2,0.002,5\r\n4,1e-3,"5"',
    );
    const sweep = await sweepOf(text);
    const recorded = await findCompletedTasks(sweep, project, null);
    expect(recorded.size).toBe(2);
    const { counts } = await planSweep(sweep, { queue: null, recorded });
    expect(counts).toMatchObject({ completed: 2, new: 2, repeated: 1 });
    await queue.enqueue(sweep.tasks());
    expect((await planSweep(sweep, { queue, recorded })).counts).toMatchObject({ completed: 2, pending: 2 });
  });

  test('a table that cannot be read is passed over, with a warning', async () => {
    mkdirSync(join(project, 'results_p/final_results.csv'), { recursive: true });
    const warnings: string[] = [];
    onWarning((message) => warnings.push(message));
    const recorded = await findCompletedTasks(await sweepOf('p: {combinations: [{a: [1]}]}'), project, null);
    expect(recorded.size).toBe(0);
    expect(warnings).toEqual([
      expect.stringMatching(
        /^results_p\/final_results\.csv: it is a directory: .*, its rows are ignored here\.$/,
      ),
    ]);
  });
});

test('planning creates no queue', async () => {
  const empty = mkdtempSync(join(project, 'empty-'));
  expect(await openQueue(null, empty, { create: false })).toBeNull();
  expect(readdirSync(empty)).toEqual([]);
});
