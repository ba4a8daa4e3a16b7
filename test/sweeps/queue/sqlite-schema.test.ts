import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from '@photostructure/sqlite';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import { all } from './conformance.ts';
import { Remote } from './remote.ts';

let directory: string;
let path: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-queue-'));
  path = join(directory, 'queue.db');
});

afterEach(() => rmSync(directory, { recursive: true, force: true }));

function raw(sql: string): void {
  const database = new DatabaseSync(path);
  database.exec(sql);
  database.close();
}

test('a database of another version is refused', async () => {
  const queue = await openQueue(`sqlite:${path}`, directory);
  await queue.close();
  raw(`PRAGMA user_version = 2`);
  for (const create of [true, false]) {
    await expect(openQueue(`sqlite:${path}`, directory, { create })).rejects.toMatchObject({
      code: 'ERR_QUEUE',
      message: expect.stringContaining(
        'its version is 2, this one has 1). Use that one, or another file: --queue',
      ),
    });
  }
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
