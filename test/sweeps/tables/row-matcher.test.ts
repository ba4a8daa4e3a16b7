import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { normalizeCell, valueOfCell } from '../../../lib/sweeps/tables/cell-value.ts';
import { exportResults } from '../../../lib/sweeps/tables/export.ts';
import { findCompletedTasks } from '../../../lib/sweeps/tables/find-results.ts';
import { RowMatcher, TaskIndex } from '../../../lib/sweeps/tables/row-matcher.ts';
import { Literal, stringifyValue, taskId } from '../../../lib/sweeps/task/index.ts';
import { FakeQueue, values } from './fake-queue.ts';

async function matcher(header: string, ...tasks: string[]) {
  const index = new TaskIndex();
  for (const [task, json] of tasks.entries()) index.add(task, values(json), `task${task}`);
  const found = await RowMatcher.make(index, header.split('|'));
  return (cells: string) => {
    const fitting = found.match(cells.split('|'));
    return fitting.length > 1 ? fitting : (fitting[0] ?? null);
  };
}

test.each([
  ['1', '1.0', '1e0', '+1', ' 1 ', '10e-1', '01'],
  ['true', 'True', 'TRUE', 'yes'],
  ['false', 'False', 'no'],
  ['', ' ', 'None', 'null', 'NULL', '~'],
  ['nan', 'NaN', '.nan'],
  ['-inf', '-Infinity', '-.inf'],
  ['mnist', ' mnist '],
  [
    '{"a": [1, "x"], "b": null}',
    '{"b":null,"a":[1.0,"x"]}',
    "{'a': (1, 'x'), 'b': None}",
    "{'a': [1, 'x',], 'b': None}".replace(',]', ']'),
  ],
  ["['it\\'s', True]", '["it\'s", true]'],
  ['0', '-0', '0.0'],
])('%s means the same as %s', (...cells) => {
  expect(new Set(cells.map(normalizeCell)).size).toBe(1);
});

test('other cells mean something else', () => {
  const cells = [
    '1',
    'true',
    '',
    'nan',
    'inf',
    'mnist',
    'MNIST',
    '[1]',
    '[[1]]',
    '1 2',
    '0x10',
    '[',
    'Nonesuch',
  ];
  expect(new Set(cells.map(normalizeCell)).size).toBe(cells.length);
});

test.each(['0.930', '1', '-1e-07', 'true', '[1,2.50]', 'text', 'NaN'])(
  'the result %s stays as it was written',
  (cell) => {
    expect(stringifyValue(valueOfCell(cell)).replaceAll('"', '')).toBe(cell);
  },
);

describe('a row matches', () => {
  test('the task with which all columns agree, where an empty cell is an absent parameter', async () => {
    const match = await matcher(
      'lr|x|seed',
      '{"lr": 1e-3, "seed": 1}',
      '{"lr": 1e-3, "seed": 2}',
      '{"lr": 0.01, "seed": 1}',
    );
    expect(match('0.001|9|1')).toBe(0);
    expect(match('0.0010||2.0')).toBe(1);
    expect(match('0.01||1')).toBe(2);
    expect(match('0.01||2')).toBe(null);
    expect(match('||')).toBe(null);
    expect(match('0.01||')).toBe(null);
    expect(match('0.001||')).toBe(null);
  });

  test('tasks of phases with other parameters, each its own', async () => {
    const match = await matcher(
      'width|depth|seed',
      '{"width": 1, "seed": 1}',
      '{"width": 1, "seed": 1, "depth": 3}',
    );
    expect(match('1||1')).toBe(0);
    expect(match('1|3|1')).toBe(1);
    expect(match('1|7|1')).toBe(null);
    expect(match('|3|')).toBe(null);
  });

  test('a task with a column too few, if there is only one', async () => {
    const match = await matcher(
      'seed',
      '{"lr": 1, "seed": 1}',
      '{"lr": 2, "seed": 1}',
      '{"lr": 1, "seed": 2}',
    );
    expect(match('1')).toEqual([0, 1]);
    expect(match('2')).toBe(2);
  });

  test('a task all of whose parameters the table has rather than one with more', async () => {
    const match = await matcher(
      'lr|seed',
      '{"lr": 1, "seed": 1, "momentum": 0.9}',
      '{"lr": 1, "seed": 1}',
      '{"lr": 2, "seed": 1, "momentum": 0.9}',
    );
    expect(match('1|1')).toBe(1);
    expect(match('2|1')).toBe(2);
  });

  test('by its name only tasks that are written alike: a new queue gives names to other tasks', async () => {
    const alike = await matcher('task_id|lr', '{"lr": 1}', '{"lr": "1"}');
    expect(alike('task1|1')).toBe(1);
    expect(alike('|1')).toEqual([0, 1]);
    const match = await matcher('task_id|seed', '{"lr": 1, "seed": 1}', '{"lr": 2, "seed": 1}');
    expect(match('task1|1')).toEqual([0, 1]);
  });

  test('tasks without parameters by their names', async () => {
    const match = await matcher('task_id|seed|loss', '{}', '{"seed": null}');
    expect(match('task0||1')).toBe(0);
    expect(match('task1||1')).toBe(1);
    expect(match('other||1')).toBe(null);
  });

  test('numbers that only YAML reads so', async () => {
    const index = new TaskIndex();
    index.add(0, { mask: new Literal(16, '0x10'), on: new Literal(true, 'yes') }, 'task0');
    const found = await RowMatcher.make(index, ['mask', 'on']);
    expect(found.match(['16', 'True'])).toEqual([0]);
  });
});

test('plans find results without a queue', async () => {
  const project = mkdtempSync(join(tmpdir(), 'find-'));
  mkdirSync(join(project, 'a'));
  writeFileSync(join(project, 'a', 'final_results.csv'), 'seed,loss\n1,2\n5,2\n3,4');
  const command = { words: ['true'] };
  const specs = [1, 2, 3].map((seed) => ({
    ...{ parameters: { seed }, outputDirectory: 'a', phase: 'exp1', command },
  }));
  const told: string[] = [];
  const sweep = { size: 3, tasks: () => specs };
  const found = await findCompletedTasks(sweep, project, null, (message) => told.push(message));
  expect([...found]).toEqual([1, 3].map((seed) => taskId({ seed })));
  expect(told).toEqual([expect.stringContaining('a/final_results.csv:3: ')]);
  // The table of a later version of the original, for all directories.
  writeFileSync(join(project, 'final_results.csv'), 'phase,seed,loss\nexp1,2,3\nexp1,1,3\n');
  expect((await findCompletedTasks(sweep, project, null, () => {})).size).toBe(3);
  rmSync(project, { recursive: true });
});

test('exp export has all completed tasks', async () => {
  const queue = new FakeQueue();
  const tasks = Array.from({ length: 450 }, (_, seed) =>
    queue.add({
      parameters: values(seed % 2 ? `{"seed": ${seed}}` : `{"seed": ${seed}, "lr": 1.0}`),
      outputDirectory: 'a',
    }),
  );
  for (const { id } of tasks.slice(1)) queue.complete(id, values('{"loss": 0.50, "lr": [1, NaN]}'));
  let text = '';
  const output = (lines: string) => {
    text += lines;
  };
  await exportResults(queue.queue, output);
  expect(text.split('\n').slice(0, 3)).toEqual([
    'task_id,seed,lr,loss,result_lr',
    'exp1_1,1,,0.50,"[1,NaN]"',
    'exp1_2,2,1.0,0.50,"[1,NaN]"',
  ]);
  expect(text.split('\n')).toHaveLength(451);
});
