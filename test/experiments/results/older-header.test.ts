// An editor that saves what it read before a column was added puts the older header back.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { ResultTables } from '../../../lib/experiments/results/result-tables.ts';
import { FakeQueue, values } from './fake-queue.ts';

/** Runs once, between our look at the file and what we append to it. */
let beforeAppend: (() => void) | null = null;

vi.mock('node:fs', async (original) => {
  const fs = await original<typeof import('node:fs')>();
  const writeSync = (...args: Parameters<typeof fs.writeSync>) => {
    const act = beforeAppend;
    beforeAppend = null;
    act?.();
    return fs.writeSync(...args);
  };
  return { ...fs, writeSync };
});

let project: string;
let path: string;
let queue: FakeQueue;
let told: string[];
let tables: ResultTables;

beforeEach(() => {
  project = mkdtempSync(join(tmpdir(), 'tables-'));
  path = join(project, 'results_a/final_results.csv');
  mkdirSync(join(project, 'results_a'));
  queue = new FakeQueue();
  told = [];
  restart();
});

afterEach(() => {
  beforeAppend = null;
  rmSync(project, { recursive: true, force: true });
});

function restart(): void {
  tables = new ResultTables(queue.queue, project, (message) => told.push(message));
}

function completed(seed: number, result: string): void {
  const task = queue.add({ parameters: values(`{"seed": ${seed}}`), outputDirectory: 'results_a' });
  queue.complete(task.id, values(result));
}

const read = () => readFileSync(path, 'utf8');

/** Nothing is left to do, also for a process that starts now. */
async function expectSettled(): Promise<void> {
  expect(await tables.sync()).toEqual({ imported: 0, restored: 0, appended: 0, problems: [] });
  restart();
  expect(await tables.sync()).toEqual({ imported: 0, restored: 0, appended: 0, problems: [] });
}

test('a row that is appended just then is written again, in the columns that it needs', async () => {
  completed(0, '{"loss": 0.5}');
  await tables.sync();
  const older = read();
  completed(1, '{"loss": 0.25, "late": 1}');
  await tables.sync();
  completed(2, '{"loss": 0.125, "late": 1}');
  beforeAppend = () => writeFileSync(path, `${older},,mine\n`);
  await tables.sync();
  expect(read()).toBe('task_id,seed,loss,late\nexp1_0,0,0.5,\n,,mine,\nexp1_2,2,0.125,1\nexp1_1,1,0.25,1\n');
  // The editor's row is no task's, which is a problem still.
  const problems = ['results_a/final_results.csv: 1 row is not the result of a task'];
  expect(await tables.sync()).toEqual({ imported: 0, restored: 0, appended: 0, problems });
});

test.each([
  ['with a value behind the last column', 'seed,task_id,loss', '1,exp1_1,0.5,7'],
  ['with an empty cell behind it', 'seed,task_id,loss,late', '1,exp1_1,0.5,7,'],
  ['whose name is behind it', 'seed', '1,exp1_1,0.5,7'],
])('a row of ours %s that an earlier process has left is written again', async (_, header, row) => {
  completed(0, '{"loss": 2}');
  completed(1, '{"loss": 0.5, "late": 7}');
  writeFileSync(path, `${header}\n${row}\n`);
  await tables.sync();
  const [columns = '', ...rows] = read().trim().split('\n');
  expect(columns.split(',').sort()).toEqual(['late', 'loss', 'seed', 'task_id']);
  const cells = rows.map((line) => line.split(',').sort());
  expect(cells.sort()).toEqual([
    ['', '0', '2', 'exp1_0'],
    ['0.5', '1', '7', 'exp1_1'],
  ]);
  await expectSettled();
});

test('a row that says anything that the queue doesn’t know stays, and is named', async () => {
  completed(0, '{"loss": 2}');
  completed(1, '{"loss": 0.5, "late": 7}');
  const text = 'seed,task_id,loss,late,note\n0,exp1_0,2,,\n1,exp1_1,0.5,7,good, as it seems\n';
  writeFileSync(path, text);
  await tables.sync();
  expect(read()).toBe(`${text}1,exp1_1,0.5,7,\n`);
  expect(told).toEqual([
    expect.stringMatching(
      /csv:3: this row has 6 cells, but there are 5 columns: values with commas need quotes/,
    ),
    expect.stringMatching(/the row of exp1_1, completed earlier, was missing and was restored/),
  ]);
});
