import { describe, expect, test } from 'vitest';
import {
  type ResultRow,
  type TaskOutcome,
  type Testimony,
  violationsIn,
  violationsOfTables,
} from './witness.ts';

let next = 1;

/** A run of a command, in the log from `from` to `to`. */
function attempt(from: number, to: number, about: Partial<Testimony> = {}): Testimony[] {
  const number = next++;
  const common = {
    pid: 1000 + number,
    role: 'command' as const,
    gpus: ['GPU-0'],
    attempt: number,
    task: 't-1',
    name: 'exp_0_0',
    start: 1,
    ...about,
  };
  const { code = 0, result = 'plain', ...start } = common;
  return [
    { ...start, kind: 'start', at: from },
    { ...common, kind: 'end', at: to, code, result },
  ];
}

const other = { task: 't-2', name: 'exp_1_1' };

describe('the witness of commands', () => {
  test('accepts attempts that come one after the other, each with what it has left behind', () => {
    const [start, end] = attempt(0, 10) as [Testimony, Testimony];
    const child = { ...start, pid: 5, role: 'forked' as const, at: 2 };
    const log = [start, child, end, { ...child, kind: 'beat' as const, at: 19 }, ...attempt(20, 30, other)];
    expect(violationsIn(log)).toEqual([]);
  });

  test('finds two attempts on a GPU at once', () => {
    expect(violationsIn([...attempt(0, 10), ...attempt(5, 15, other)])).toEqual([
      expect.stringMatching(/^GPU GPU-0 had two attempts at 5: .*exp_0_0.*exp_1_1/),
    ]);
  });

  test('finds attempts that share one of several GPUs', () => {
    const log = [
      ...attempt(0, 10, { gpus: ['GPU-1', 'GPU-2'] }),
      ...attempt(5, 15, { ...other, gpus: ['GPU-0', 'GPU-2'] }),
    ];
    expect(violationsIn(log)).toEqual([expect.stringContaining('GPU GPU-2 had two')]);
  });

  test('finds a child of an attempt that is still on the GPU during the next', () => {
    const [start, end] = attempt(0, 10) as [Testimony, Testimony];
    const child = { ...start, pid: 5, role: 'started' as const };
    const log = [
      start,
      { ...child, at: 2 },
      end,
      { ...child, kind: 'beat' as const, at: 21 },
      ...attempt(20, 30, other),
    ];
    expect(violationsIn(log)).toEqual([expect.stringContaining('started 5 of exp_0_0')]);
  });

  test('finds somebody else who claimed the GPU', () => {
    const claimant = { role: 'claimant' as const, task: null, name: null, start: null };
    expect(violationsIn([...attempt(0, 10), ...attempt(5, 15, claimant)])).toHaveLength(1);
  });

  test('finds a task that runs twice at once, on different GPUs', () => {
    const log = [...attempt(0, 10), ...attempt(5, 15, { gpus: ['GPU-1'], start: 2 })];
    expect(violationsIn(log)).toEqual([expect.stringContaining('task t-1 had two attempts')]);
  });

  test('has what a process saw itself', () => {
    const [start] = attempt(0, 10) as [Testimony];
    const log = [start, { ...start, kind: 'violation' as const, what: 'nobody has the lease' }];
    expect(violationsIn(log)).toEqual([expect.stringContaining('nobody has the lease')]);
  });

  test('finds a fourth start, but not one after the command has said that it is not its fault', () => {
    const starts = (codes: (number | string)[]) =>
      codes.flatMap((code, i) => attempt(10 * i, 10 * i + 5, { start: Math.min(i + 1, 3), code }));
    expect(violationsIn(starts([1, 'kill', 1]))).toEqual([]);
    expect(violationsIn(starts([1, 75, 75, 1, 0]))).toEqual([]);
    expect(violationsIn(starts([1, 1, 1, 0]))).toEqual([expect.stringContaining('started 4 times')]);
    expect(violationsIn(attempt(0, 1, { start: 4 }))).toEqual([expect.stringContaining('no such start')]);
  });

  test('counts a start that was killed, which has no end', () => {
    const log = [0, 1, 2, 3].map((i) => attempt(i, i, { start: Math.min(i + 1, 3) })[0] as Testimony);
    expect(violationsIn(log)).toEqual([expect.stringContaining('started 4 times')]);
  });
});

describe('the witness of tables', () => {
  const outcome: TaskOutcome = {
    id: 't-1',
    name: 'exp_0_0',
    state: 'completed',
    starts: 1,
    tables: ['a', 'b'],
  };
  const rowsOf = (run: Testimony[], tables = ['a', 'b']): ResultRow[] =>
    tables.map((table) => ({ table, task: 'exp_0_0', attempt: String(run[0]?.attempt) }));
  const run = attempt(0, 10);

  test('accepts one row of each completed task in each of its tables, and none of others', () => {
    const failing = attempt(20, 30, { ...other, code: 1 });
    const failed = { ...outcome, id: 't-2', name: 'exp_1_1', state: 'failed' };
    expect(violationsOfTables([...run, ...failing], [outcome, failed], rowsOf(run))).toEqual([]);
    const silent = attempt(0, 10, { result: 'none' });
    const empty = rowsOf(silent).map((row) => ({ ...row, attempt: '' }));
    expect(violationsOfTables(silent, [outcome], empty)).toEqual([]);
  });

  test('finds a missing row, and one too many', () => {
    expect(violationsOfTables(run, [outcome], rowsOf(run, ['a']))).toEqual([
      expect.stringContaining('b has 0 rows'),
    ]);
    expect(violationsOfTables(run, [outcome], rowsOf(run, ['a', 'b', 'b']))).toEqual([
      expect.stringContaining('b has 2 rows'),
    ]);
  });

  test('finds a row of a task that is not completed, or that nobody knows', () => {
    const failed = { ...outcome, state: 'failed' };
    expect(violationsOfTables(run, [failed], rowsOf(run, ['a']))).toEqual([
      expect.stringContaining('a has 1 rows for exp_0_0, which is failed'),
    ]);
    expect(violationsOfTables(run, [], rowsOf(run, ['a']))).toEqual([expect.stringContaining('no task')]);
  });

  test('finds a row of another attempt than the last', () => {
    const late = attempt(20, 30, { start: 2 });
    expect(violationsOfTables([...run, ...late], [outcome], rowsOf(run))).toHaveLength(2);
  });

  test('finds a completed task whose last attempt failed, was killed, or left a bad result', () => {
    for (const log of [
      attempt(0, 10, { code: 1 }),
      attempt(0, 10).slice(0, 1),
      attempt(0, 10, { result: 'cut' }),
    ]) {
      const found = violationsOfTables(log, [outcome], rowsOf(log));
      expect(found).toContainEqual(expect.stringContaining('is completed, but'));
    }
  });

  test('finds a task that is not at its end, or was started too often', () => {
    const starting = { ...outcome, state: 'active', starts: 4, tables: [] };
    expect(violationsOfTables([], [starting], [])).toEqual([
      expect.stringContaining('is active'),
      expect.stringContaining('4 times'),
    ]);
  });
});
