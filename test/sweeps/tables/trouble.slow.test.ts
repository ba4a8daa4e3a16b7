import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parse } from 'csv-parse/sync';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { ResultTables } from '../../../lib/sweeps/tables/result-tables.ts';
import type { TaskSpec, Values } from '../../../lib/sweeps/task/index.ts';
import { bundle } from '../../support/bundle.ts';
import { FakeQueue } from './fake-queue.ts';

const LONG = process.env.GPU_OWNER_SOAK !== undefined;
const EDITOR_MS = LONG ? 60_000 : 1_500;
let project: string;
let children: ChildProcess[];

beforeEach(() => {
  project = mkdtempSync(join(tmpdir(), 'tables-'));
  children = [];
});

afterEach(async () => {
  for (const child of children) child.kill('SIGKILL');
  await Promise.all(children.map((child) => child.exitCode ?? child.signalCode ?? once(child, 'exit')));
  rmSync(project, { recursive: true, force: true });
});

function start(program: string, ...words: string[]): ChildProcess {
  const child = spawn(program, words, { stdio: ['ignore', 'pipe', 'inherit'] });
  children.push(child);
  return child;
}

function path(directory: string): string {
  return join(project, directory, 'final_results.csv');
}

/** Reads by a reader that isn't ours. The last line may have been cut, if its writer was killed. */
function read(directory: string, { cut = false } = {}): Record<string, string>[] {
  let text: string;
  try {
    text = readFileSync(path(directory), 'utf8');
  } catch {
    return [];
  }
  if (cut) text = text.slice(0, text.lastIndexOf('\n') + 1);
  return parse(text, { columns: true });
}

function specs(count: number): TaskSpec[] {
  return Array.from({ length: count }, (_, seed) => ({
    parameters: { seed, ...(seed % 3 === 0 ? { width: 2 } : {}) },
    command: { words: ['true'] },
    phase: 'exp1',
    outputDirectory: seed % 2 === 0 ? 'results_a' : 'results_b',
  }));
}

function resultOf(name: string): Values {
  const number = Number(name.replaceAll(/\D/g, ''));
  // Big rows are written in several pages, between which a process can be killed; new keys make tables be rewritten.
  return {
    [`loss_${Math.floor(number / 30)}`]: number,
    text: `"${name}", `.repeat(number % 10 === 0 ? 8_000 : 3),
  };
}

async function completeOne(queue: Queue): Promise<string | null> {
  const attempt = await queue.take({ name: 'gpu0', host: 'here', pid: process.pid, gpus: [] });
  if (attempt === null) return null;
  await queue.complete(attempt.token, resultOf(attempt.task.name));
  return attempt.task.name;
}

function names(rows: readonly Record<string, string>[]): string[] {
  return rows.map(({ task_id }) => task_id as string).filter((name) => name !== '');
}

test('killed again and again, whoever writes the tables leaves one row per task', async () => {
  const database = join(project, 'queue.db');
  const queue = await openQueue(`sqlite:${database}`, '/');
  const count = LONG ? 8_000 : 150;
  await queue.enqueue(specs(count));
  const program = bundle(new URL('./fixtures/writer.ts', import.meta.url).pathname);
  const completed: string[] = [];
  for (let isLeft = true, kills = 0; isLeft; kills++) {
    const writer = start(process.execPath, program, database, project);
    await once(writer.stdout as NonNullable<ChildProcess['stdout']>, 'data');
    const end = Date.now() + 50 + ((kills * 97) % 600);
    while (Date.now() < end && isLeft) {
      const name = await completeOne(queue);
      if (name === null) isLeft = false;
      else completed.push(name);
      await sleep(1);
    }
    writer.kill('SIGKILL');
    await once(writer, 'exit');
    const there = [...names(read('results_a', { cut: true })), ...names(read('results_b', { cut: true }))];
    expect(new Set(there).size).toBe(there.length);
    expect(completed).toEqual(expect.arrayContaining(there));
  }
  expect(completed).toHaveLength(count);

  const told: string[] = [];
  const tables = new ResultTables(queue, project, (message) => told.push(message));
  await tables.sync();
  const rows = [...read('results_a'), ...read('results_b')];
  expect(names(rows).sort()).toEqual([...completed].sort());
  for (const row of rows) {
    for (const [key, value] of Object.entries(resultOf(row.task_id as string))) {
      expect(row[key]).toBe(String(value));
    }
  }
  const last = ['results_a', 'results_b'].map((directory) => readFileSync(path(directory), 'utf8'));
  await tables.sync();
  expect(['results_a', 'results_b'].map((directory) => readFileSync(path(directory), 'utf8'))).toEqual(last);
  expect(tables.tableState).toMatchObject({ unreadable: [], unwritable: [], missing: 0 });
  await queue.close();
}, 300_000);

test('an editor that saves over and over loses no row, neither ours nor its own', async () => {
  const queue = new FakeQueue();
  const count = LONG ? 20_000 : 500;
  const tasks = specs(count).map((spec) => queue.add({ ...spec, outputDirectory: 'results_a' }));
  const told: string[] = [];
  const tables = new ResultTables(queue.queue, project, (message) => told.push(message));
  mkdirSync(join(project, 'results_a'));
  writeFileSync(path('results_a'), 'seed,note\n,"first"\n');
  await tables.sync();
  const log = join(project, 'log');
  const editor = start(
    'python3',
    new URL('./fixtures/editor.py', import.meta.url).pathname,
    path('results_a'),
    log,
  );
  const end = Date.now() + EDITOR_MS;
  const edits = () => (existsSync(log) ? readFileSync(log, 'utf8').trim().split('\n') : []);
  for (let at = 0; at < count || edits().length < 6; ) {
    const upTo = Math.min(count, Math.ceil(count * (1 - (end - Date.now()) / EDITOR_MS)));
    for (; at < upTo; at++) {
      const task = tasks[at] as (typeof tasks)[number];
      queue.complete(task.id, { loss: at, ...(at > count / 2 ? { late: 1 } : {}) });
    }
    await tables.sync();
    await sleep(2);
  }
  editor.kill('SIGTERM');
  await once(editor, 'exit');
  await tables.sync();
  expect(tables.tableState.missing).toBe(0);
  const rows = read('results_a');
  expect(names(rows).sort()).toEqual(tasks.map(({ name }) => name).sort());
  const mine = edits();
  const cells = rows.flatMap((row) => Object.values(row));
  for (const word of ['first', ...mine]) expect(cells.filter((cell) => cell === word)).toHaveLength(1);
  // Otherwise nothing was tested.
  expect(told.join('\n')).toMatch(/restored from the queue/);
}, 180_000);

const mounted = mkdtempSync(join(tmpdir(), 'tables-full-'));
const mount = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', mounted]);
const whyNotFull = mount.status === 0 ? null : 'needs root, to mount a small file system';
if (mount.status === 0) spawnSync('umount', [mounted]);
rmSync(mounted, { recursive: true });

describe.skipIf(whyNotFull !== null)(`a full disk${whyNotFull === null ? '' : ` (${whyNotFull})`}`, () => {
  afterEach(() => {
    spawnSync('umount', ['-l', join(project, 'disk')]);
  });

  test.each([0, 1])(
    'is told once; rows are whole, and come when there is room (new column: %i)',
    async (extra) => {
      const disk = join(project, 'disk');
      mkdirSync(disk);
      spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', disk]);
      const queue = new FakeQueue();
      const tasks = [0, 1, 2, 3].map((seed) =>
        queue.add({ parameters: { seed }, outputDirectory: 'disk/a' }),
      );
      const other = queue.add({ parameters: { seed: 9 }, outputDirectory: 'results_b' });
      const told: string[] = [];
      const tables = new ResultTables(queue.queue, project, (message) => told.push(message));
      await tables.sync();
      queue.complete(tasks[0]?.id as string, { text: 'x'.repeat(50_000) });
      await tables.sync();
      writeFileSync(join(disk, 'ballast'), Buffer.alloc(900_000));
      const [first] = read('disk/a');
      queue.complete(other.id, {});
      for (const task of tasks.slice(1)) {
        queue.complete(task.id, { text: 'y'.repeat(100_000), ...(extra ? { more: 1 } : {}) });
        await tables.sync();
        expect(told).toEqual([expect.stringContaining('the disk is full')]);
        expect(read('disk/a')).toEqual([first]);
      }
      expect(read('results_b')).toHaveLength(1);
      expect(told).toHaveLength(1);
      expect(told[0]).toMatch(/final_results\.csv: the disk is full.*kept in the queue/);
      rmSync(join(disk, 'ballast'));
      await tables.sync();
      expect(tables.tableState.missing).toBe(0);
      expect(read('disk/a')).toHaveLength(4);
      expect(told).toHaveLength(1);
    },
  );
});
