import { mkdirSync, mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { findResults } from '../../../lib/experiments/results/find-results.ts';
import { ResultTables } from '../../../lib/experiments/results/result-tables.ts';
import { type Task, taskId } from '../../../lib/experiments/task/index.ts';
import { FakeQueue, values } from './fake-queue.ts';

let project: string;
let queue: FakeQueue;
let told: string[];

beforeEach(() => {
  project = mkdtempSync(join(tmpdir(), 'gaps-'));
  mkdirSync(join(project, 'out'));
  queue = new FakeQueue();
  told = [];
});
afterEach(() => rmSync(project, { recursive: true }));

const path = () => join(project, 'out/final_results.csv');
const add = (json: string): Task => queue.add({ parameters: values(json), outputDirectory: 'out' });
const run = () => new ResultTables(queue.queue, project, (message) => told.push(message)).sync();

function put(text: string): void {
  writeFileSync(path(), text);
  utimesSync(path(), 1, 1); // as if long ago: what changed just now is waited for
}

/** The tasks of a sweep that the plan takes for completed. */
async function planned(sweep: readonly string[]): Promise<string[]> {
  const sought = sweep.map((json) => ({
    id: taskId(values(json)),
    parameters: values(json),
    outputDirectory: 'out',
    phase: 'exp1',
  }));
  const found = await findResults(project, sought, (message) => told.push(message), queue.queue);
  return sweep.filter((json) => found.has(taskId(values(json))));
}

/** The results that tables give to the tasks of a sweep; null: the task would run. The plan must say the same before. */
async function resultsOf(sweep: readonly string[]): Promise<unknown[]> {
  const done = await planned(sweep);
  const tasks = sweep.map(add);
  await run();
  const results = tasks.map(({ id }) => {
    const { state, result } = queue.get(id);
    return state === 'completed' ? result.loss : null;
  });
  expect(done).toEqual(sweep.filter((_, at) => results[at] !== null));
  return results;
}

const BEFORE = ['{"lr": 0.1, "seed": 1}', '{"lr": 0.01, "seed": 1}'];
const AFTER = ['{"lr": 0.1, "seed": 1, "momentum": 0.9}', '{"lr": 0.01, "seed": 1, "momentum": 0.9}'];
const OURS = 'task_id,lr,seed,loss,momentum\n';
const OTHERS = 'lr,seed,loss,momentum\n';

describe('a row without a parameter that a sweep got later', () => {
  test('is the row of the task that has run, where the queue knows it', async () => {
    for (const json of BEFORE) queue.complete(add(json).id, { loss: 3 });
    await run();
    expect(readFileSync(path(), 'utf8')).toBe('task_id,lr,seed,loss\nexp1_0,0.1,1,3\nexp1_1,0.01,1,3\n');
    utimesSync(path(), 1, 1);
    told.length = 0;
    expect(await resultsOf(AFTER)).toEqual([null, null]);
    expect(told).toEqual([]);
  });

  test.each<[string, string, (number | null)[]]>([
    [
      'after rows that have it',
      `${OURS}x_2,0.1,1,1,0.9\nx_3,0.01,1,0.91,0.9\nx_0,0.1,1,0.1,\nx_1,0.01,1,0.01,\n`,
      [1, 0.91],
    ],
    [
      'before them',
      `${OURS}x_0,0.1,1,0.1,\nx_1,0.01,1,0.01,\nx_2,0.1,1,1,0.9\nx_3,0.01,1,0.91,0.9\n`,
      [1, 0.91],
    ],
    [
      'where only another task has run',
      `${OURS}x_0,0.1,1,0.1,\nx_1,0.01,1,0.01,\nx_3,0.01,1,0.91,0.9\n`,
      [null, 0.91],
    ],
    ['where none has run', `${OURS}x_0,0.1,1,0.1,\nx_1,0.01,1,0.01,\nx_3,5,1,0.91,0.9\n`, [null, null]],
    ['in rows of others', `${OTHERS}0.1,1,0.1,\n0.01,1,0.01,\n0.01,1,0.91,0.9\n`, [null, 0.91]],
    ['before a last line without an end', `${OTHERS}0.1,1,0.1,\n0.01,1,0.01,\n0.01,1,0.91,0.9`, [null, 0.91]],
    ['where it is written as nothing', `${OTHERS}0.1,1,0.1,None\n0.01,1,0.91,0.9\n`, [null, 0.91]],
  ])('is no task’s: %s', async (_, text, results) => {
    put(text);
    expect(await resultsOf(AFTER)).toEqual(results);
    expect(told.join()).toMatch(/:\d: this row says nothing of momentum, as other rows do/);
    expect(readFileSync(path(), 'utf8').startsWith(text)).toBe(true);
  });
});

test('a row that fits several tasks as it lacks a parameter is no task’s, whatever its name is in a new task list', async () => {
  const several = [0.7, 0.9].map((momentum) => `{"lr": 0.1, "seed": 1, "momentum": ${momentum}}`);
  put('task_id,lr,seed,loss\nexp1_0,0.1,1,0.1\nexp1_1,0.01,1,0.01\n');
  expect(await resultsOf(several)).toEqual([null, null]);
  expect(told.join()).toMatch(
    /:2: this row fits several tasks .* Fill in the parameters that differ: momentum/,
  );
});

describe('a row without a parameter still counts', () => {
  test.each<[string, string]>([
    ['where the table hasn’t the column', 'lr,seed,loss\n0.1,1,0.1\n0.01,1,0.01\n'],
    ['where no row has it', `${OTHERS}0.1,1,0.1,\n0.01,1,0.01,\n`],
    ['where only rows of ours have it', `task_id,${OTHERS},0.1,1,0.1,\n,0.01,1,0.01,\nx_3,5,1,0.91,0.9\n`],
  ])('%s', async (_, text) => {
    put(text);
    expect(await resultsOf(AFTER)).toEqual([0.1, 0.01]);
  });

  test('unless a row that has it is there as well', async () => {
    put(`task_id,${OTHERS},0.1,1,0.1,\n,0.01,1,0.01,\nx_2,0.1,1,1,0.9\n`);
    expect(await resultsOf(AFTER)).toEqual([1, 0.01]);
    expect(told.join()).toMatch(/:2: task \S+ already has a row \(line 4\); that one counts/);
  });

  test('as the row of a worker over TCP that wrote it while the task ran', async () => {
    const [one] = AFTER.map(add) as [Task, Task];
    queue.set(one.id, 'active');
    put(`${OTHERS}0.1,1,0.5,\n5,1,0.91,0.9\n`);
    const tables = new ResultTables(queue.queue, project, (message) => told.push(message));
    await tables.sync();
    expect(await tables.rowsOf(one.id)).toMatchObject({
      own: null,
      left: 1,
      unassigned: [{ result: { loss: 0.5 } }],
    });
    queue.completeOverTCP(one.id, { loss: 0.5 }, { submitted: true, worker: 'gpu0' });
    await tables.sync();
    expect(readFileSync(path(), 'utf8')).toBe(
      `lr,seed,loss,momentum,task_id\n0.1,1,0.5,0.9,exp1_0\n5,1,0.91,0.9,\n`,
    );
  });
});

test('a task that is retried loses its own row, and none of another sweep', async () => {
  put(`${OURS}x_0,0.1,1,0.1,\nx_2,0.1,1,1,0.9\n`);
  const [task] = AFTER.map(add) as [Task, Task];
  const tables = new ResultTables(queue.queue, project, () => {});
  await tables.sync();
  queue.retry(task.id);
  await tables.sync();
  expect(readFileSync(path(), 'utf8')).toBe(`${OURS}x_0,0.1,1,0.1,\n`);
});
