import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  copyFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from '@photostructure/sqlite';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { until } from '../../support/machine.ts';
import { all, takeFrom, worker } from './conformance.ts';
import { plainTasks, spec } from './fixtures/tasks.ts';

/** Tests what happens to the files of a queue, and which files are none. */

let directory: string;
let path: string;
const queues: Queue[] = [];

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-queue-'));
  path = join(directory, 'queue.db');
});

afterEach(async () => {
  for (const queue of queues.splice(0)) await queue.close();
  rmSync(directory, { recursive: true, force: true });
});

async function open(file = path): Promise<Queue> {
  const queue = await openQueue(`sqlite:${file}`, directory);
  queues.push(queue);
  return queue;
}

/** How it is refused. */
async function refusal(act: Promise<unknown>): Promise<string> {
  const error = await act.then(
    () => null,
    (reason) => reason,
  );
  expect(error?.code).toBe('ERR_QUEUE');
  return error.message;
}

test('looking at a queue makes no file', async () => {
  expect(await openQueue(`sqlite:${path}`, directory, { create: false })).toBeNull();
  expect(await openQueue(null, directory, { create: false })).toBeNull();
  expect(readdirSync(directory)).toEqual([]);
  await open();
  const found = await openQueue(`sqlite:${path}`, directory, { create: false });
  expect(await found?.counts()).toMatchObject({ pending: 0 });
  await found?.close();
});

test('URLs are relative to the project, and may be as others write them', async () => {
  for (const url of ['sqlite:queue.db', `sqlite://${path}`, `sqlite:${path}`]) {
    const queue = await openQueue(url, directory);
    expect(queue.url).toBe(`sqlite:${path}`);
    await queue.close();
  }
  for (const url of ['', 'sqlite:', 'queue.db', 'mysql://host', 'sqlite:a\0b']) {
    await expect(openQueue(url, directory)).rejects.toMatchObject({ code: 'ERR_INVALID_ARGUMENT' });
  }
});

test('a file that is no database is left alone', async () => {
  mkdirSync(join(directory, 'directory'));
  expect(await refusal(open(join(directory, 'directory')))).toMatch(/not a regular file/);
  spawnSync('mkfifo', [join(directory, 'fifo')]);
  expect(await refusal(open(join(directory, 'fifo')))).toMatch(/not a regular file/);
  const text = 'A text of somebody. '.repeat(1_000);
  writeFileSync(join(directory, 'text'), text);
  expect(await refusal(open(join(directory, 'text')))).toMatch(/file is not a database/);
  expect(statSync(join(directory, 'text')).size).toBe(text.length);
  symlinkSync(join(directory, 'nowhere'), join(directory, 'dangling'));
  expect(await refusal(open(join(directory, 'dangling')))).toMatch(/symbolic link/);
  expect(await refusal(open(join(directory, 'no', 'such', 'queue.db')))).toMatch(/no such file or directory/);
  expect(await refusal(open(join(directory, 'text', 'queue.db')))).toMatch(/not a directory/);
});

test("other programs' databases are left alone", async () => {
  const other = new DatabaseSync(path);
  other.exec('CREATE TABLE task (mine TEXT)');
  other.close();
  expect(await refusal(open())).toMatch(/another program/);
  const again = new DatabaseSync(path);
  expect(again.prepare('SELECT name FROM sqlite_schema').all()).toEqual([{ name: 'task' }]);
  again.close();
});

test('an empty file becomes a queue', async () => {
  writeFileSync(path, '');
  expect(await (await open()).counts()).toMatchObject({ pending: 0 });
});

test('a queue is the same under whatever path, and refused with two hard links', async () => {
  symlinkSync(path, join(directory, 'link.db'));
  const queue = await open();
  await queue.enqueue([spec({ n: 0 })]);
  const linked = await open(join(directory, 'link.db'));
  expect(linked.url).toBe(queue.url);
  const { token } = await takeFrom(linked);
  expect(await queue.take(worker)).toBeNull();
  expect(await queue.complete(token, {})).toBe(true);
  linkSync(path, join(directory, 'hard.db'));
  expect(await refusal(open(join(directory, 'hard.db')))).toMatch(/2 hard links/);
  expect(await refusal(open())).toMatch(/2 hard links/);
});

test('a damaged database is refused, with the remedy', async () => {
  const queue = await open();
  await queue.enqueue(plainTasks(3_000));
  await queue.close();
  copyFileSync(path, join(directory, 'damaged.db'));
  const descriptor = openSync(join(directory, 'damaged.db'), 'r+');
  for (let page = 3; page < 100; page++)
    writeSync(descriptor, Buffer.alloc(4_000, 0xa5), 0, 4_000, page * 4_096);
  closeSync(descriptor);
  const use = async () => {
    const damaged = await open(join(directory, 'damaged.db'));
    await damaged.enqueue(plainTasks(3_000));
    await all(damaged.tasks());
  };
  expect(await refusal(use())).toMatch(/is damaged.*backup/);
});

test('a damaged record is an error that names it', async () => {
  const queue = await open();
  await queue.enqueue([spec({ n: 0 })]);
  const raw = new DatabaseSync(path);
  raw.exec("UPDATE task SET parameters = '{'");
  raw.close();
  expect(await refusal(all(queue.tasks()))).toMatch(/record of task exp1_0 .*damaged.*backup/);
  expect(await refusal(queue.take(worker))).toMatch(/record of task exp1_0 .*damaged.*backup/);
});

test('without the file beside it, what was not yet moved into the database is missing, and comes again', async () => {
  const queue = await open();
  await queue.enqueue(plainTasks(10));
  await queue.close(); // moves it
  const later = await open();
  await later.complete((await takeFrom(later)).token, { a: 1 });
  const copy = join(directory, 'copy.db');
  copyFileSync(path, copy);
  const restored = await open(copy);
  expect(await restored.counts()).toMatchObject({ pending: 10, completed: 0 });
  expect((await takeFrom(restored)).task.name).toBe('exp1_0_0');
});

test('a database that is removed or replaced while in use is noticed, and its commands are ended', async () => {
  for (const remove of [
    () => unlinkSync(path),
    () => unlinkSync(`${path}-lock`),
    () => renameSync(path, join(directory, 'away.db')),
    () => {
      copyFileSync(path, join(directory, 'other.db'));
      renameSync(join(directory, 'other.db'), path);
    },
  ]) {
    const queue = await open();
    await queue.enqueue([spec({ n: 0 })]);
    const { token, signal } = await takeFrom(queue);
    remove();
    await until(() => signal.aborted);
    expect(signal.reason.message).toMatch(/removed or replaced/);
    expect(await refusal(queue.complete(token, {}))).toMatch(/removed or replaced/);
    expect(await refusal(queue.take(worker))).toMatch(/removed or replaced/);
    await queue.changed(10_000); // doesn't keep anybody from noticing
    await queue.close();
    rmSync(directory, { recursive: true });
    mkdirSync(directory);
  }
});

test('a database from before the attempts that live gives their numbers to nobody', async () => {
  const queue = await open();
  await queue.enqueue([spec({ n: 0 }), spec({ n: 1 })]);
  await queue.close();
  copyFileSync(path, join(directory, 'backup.db'));
  const later = await open();
  const attempts = [await takeFrom(later), await takeFrom(later)];
  for (const suffix of ['', '-wal', '-shm']) rmSync(`${path}${suffix}`, { force: true });
  copyFileSync(join(directory, 'backup.db'), path);
  const restored = await open();
  const again = await takeFrom(restored);
  for (const { token } of attempts) expect(await restored.complete(token, {})).toBe(false);
  expect(await restored.take(worker)).not.toBeNull();
  expect(await restored.take(worker)).toBeNull();
  expect(await restored.complete(again.token, {})).toBe(true);
});

test('files are for those who may write to their directory, whatever the umask', async () => {
  for (const [mode, umask, expected] of [
    [0o755, 0o022, '600'],
    [0o777, 0o000, '600'],
    [0o775, 0o022, '660'],
    [0o2770, 0o077, '660'],
  ] as const) {
    chmodSync(directory, mode);
    const before = process.umask(umask);
    try {
      await open();
      for (const suffix of ['', '-lock', '-wal', '-shm']) {
        expect((statSync(`${path}${suffix}`).mode & 0o777).toString(8)).toBe(expected);
      }
    } finally {
      process.umask(before);
    }
    for (const queue of queues.splice(0)) await queue.close();
    for (const suffix of ['', '-lock', '-wal', '-shm']) rmSync(`${path}${suffix}`, { force: true });
  }
});

test('a file that everybody could read is made private when its owner uses it', async () => {
  const suffixes = ['', '-lock', '-wal', '-shm'];
  for (const [before, after] of [
    [0o644, '600'],
    [0o666, '600'],
    [0o664, '660'],
  ] as const) {
    const queue = await open();
    for (const suffix of suffixes) chmodSync(`${path}${suffix}`, before);
    await open();
    for (const suffix of suffixes) {
      expect((statSync(`${path}${suffix}`).mode & 0o777).toString(8)).toBe(after);
    }
    await queue.enqueue([spec({ n: before })]);
  }
});

test('a queue that was closed says so', async () => {
  const queue = await open();
  await queue.enqueue([spec({ n: 0 })]);
  const { descriptors } = await takeFrom(queue);
  await queue.close();
  await queue.close();
  expect(await refusal(queue.counts())).toMatch(/closed/);
  expect(() => closeSync(descriptors[0] as number)).toThrow('EBADF');
  expect(existsSync(path)).toBe(true);
  expect((await takeFrom(await open())).start).toBe(2);
});
