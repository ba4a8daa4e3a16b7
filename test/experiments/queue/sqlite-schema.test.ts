import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync, type DatabaseSyncInstance } from '@photostructure/sqlite';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { openQueue } from '../../../lib/experiments/queue/index.ts';
import { migrate, STEPS } from '../../../lib/experiments/queue/sqlite/schema.ts';
import { all, rowOf, takeFrom } from './conformance.ts';
import { spec } from './fixtures/tasks.ts';
import { Remote } from './remote.ts';

let directory: string;
let path: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-queue-'));
  path = join(directory, 'queue.db');
});

afterEach(() => rmSync(directory, { recursive: true, force: true }));

const version1 = readFileSync(join(import.meta.dirname, 'fixtures/version-1.sql'), 'utf8');

function raw(sql: string): void {
  const database = new DatabaseSync(path);
  database.exec(sql);
  database.close();
}

function schemaOf(database: DatabaseSyncInstance): unknown[] {
  const rows = database.prepare('SELECT name, sql FROM sqlite_schema ORDER BY name').all() as {
    name: string;
    sql: string | null;
  }[];
  return rows.map(({ name, sql }) => [name, sql?.replace(/\s+/g, ' ')]);
}

test('a queue of version 1 goes on where it was', async () => {
  raw(version1);
  const queue = await openQueue(`sqlite:${path}`, directory);
  try {
    expect(await queue.counts()).toEqual({ pending: 2, active: 1, completed: 1, failed: 1, cancelled: 1 });
    expect(await queue.paused()).toMatchObject({ by: 'person', message: 'lunch' });
    expect((await queue.retracted()).map(({ name }) => name)).toEqual(['exp1_1_42']);
    expect((await queue.completions(0, 9)).map(({ task, result }) => [task.name, result])).toEqual([
      ['exp1_0_42', { accuracy: 0.5 }],
    ]);
    expect(await rowOf(queue, 'exp1_2_42')).toMatchObject({
      state: 'failed',
      error: 'exit code 1',
      starts: 1,
    });
    const specs = [0, 1, 2, 3, 4, 5, 6].map((n) => spec({ n, seed: 42 }));
    expect(await queue.enqueue(specs)).toEqual({ added: 1, known: 6, placed: 0 });
    await queue.resume();
    // The one that was active comes again: its machine has been restarted since.
    const names = ['exp1_1_42', 'exp1_3_42', 'exp1_5_42', 'exp1_6_42'];
    for (const name of names) {
      const { task, token, start } = await takeFrom(queue);
      expect([task.name, start]).toEqual([name, 1]);
      await queue.complete(token, {});
    }
    expect((await queue.completions(0, 9)).map(({ task }) => task.name)).toEqual(['exp1_0_42', ...names]);
  } finally {
    await queue.close();
  }
});

test('version 1 stays what it was', () => {
  const [then, now] = [new DatabaseSync(':memory:'), new DatabaseSync(':memory:')];
  then.exec(version1);
  migrate(now, ':memory:', STEPS.slice(0, 1));
  expect(schemaOf(now)).toEqual(schemaOf(then));
});

test('steps are made in order, once, and all or none', () => {
  raw(version1);
  const database = new DatabaseSync(path);
  const steps = [
    ...STEPS.slice(0, 1),
    `ALTER TABLE task ADD COLUMN note TEXT; UPDATE task SET note = 'of version 1'`,
    `INSERT INTO setting VALUES ('steps', '3')`,
  ];
  expect(() => migrate(database, path, [...steps, 'CREATE TABLE nonsense'])).toThrow();
  expect(database.isTransaction).toBe(false);
  expect(database.prepare('PRAGMA user_version').get()).toEqual({ user_version: 1 });
  expect(() => database.prepare('SELECT note FROM task')).toThrow(/no such column/);
  migrate(database, path, steps);
  migrate(database, path, steps);
  expect(database.prepare('PRAGMA user_version').get()).toEqual({ user_version: 3 });
  expect(database.prepare('SELECT DISTINCT note FROM task').all()).toEqual([{ note: 'of version 1' }]);
  database.close();
});

test("a newer version's queue is left alone", async () => {
  raw(version1);
  raw('PRAGMA user_version = 99');
  const error = await openQueue(`sqlite:${path}`, directory).catch((reason) => reason);
  expect(error).toMatchObject({
    code: 'ERR_QUEUE',
    message: expect.stringMatching(/newer gpu-owner.*99.*Update/),
  });
  expect(await openQueue(`sqlite:${path}`, directory, { create: false }).catch(({ code }) => code)).toBe(
    'ERR_QUEUE',
  );
});

test('processes that make it at the same time make one', async () => {
  const remotes = await Promise.all(
    Array.from({ length: 8 }, () => Remote.start(`sqlite:${path}`, directory)),
  );
  const added = await Promise.all(
    remotes.map((remote) => remote.ask<{ added: number }>('enqueue', 5, 'exp1')),
  );
  expect(added.reduce((sum, each) => sum + each.added, 0)).toBe(5);
  await Promise.all(remotes.map((remote) => remote.close()));
  const queue = await openQueue(`sqlite:${path}`, directory);
  expect(await all(queue.tasks())).toHaveLength(5);
  await queue.close();
});
