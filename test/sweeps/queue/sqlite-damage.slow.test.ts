import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from '@photostructure/sqlite';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import { Random } from '../../support/random.ts';
import { all, takeFrom, worker } from './conformance.ts';
import { plainTasks } from './fixtures/tasks.ts';
import { misuse } from './misuse.ts';

/** Files that disks, people and other programs have damaged: whatever was asked of them is answered, or ERR_QUEUE. */

/** Seed of the first random damage; the next one's is one more. */
const SEED = Number(process.env.GPU_OWNER_TEST_SEED ?? Date.now() % 1_000_000);
/** For random damage. */
const SECONDS = Number(process.env.GPU_OWNER_TEST_SECONDS ?? (process.env.GPU_OWNER_SOAK ? 60 : 1));
const FEWEST = 10;
const PAGE = 4_096;

let directory: string;
/** A sound one, with tasks in all states. */
let sound: string;
let path: string;

beforeAll(async () => {
  directory = mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), 'gpu-owner-damage-')); // no disk is waited for;
  sound = join(directory, 'sound.db');
  const queue = await openQueue(`sqlite:${sound}`, '/');
  await queue.enqueue(plainTasks(40));
  for (let n = 0; n < 12; n++) {
    const { token } = await takeFrom(queue);
    void queue.setLog(token, { path: join(directory, 'log'), from: 0, to: n });
    if (n % 4 === 0) await queue.fail(token, { error: 'exit code 1', retry: n % 8 === 0 });
    else await queue.complete(token, { loss: n / 7, list: [1, { a: null }] });
  }
  await queue.cancel({ ids: ['exp1_20_2', 'exp1_21_0'] });
  await queue.retry({ ids: ['exp1_1_1'] });
  await queue.take(worker, { lifetime: 3_600_000 }); // lasts
  await queue.take(worker); // lost when this queue is closed
  await queue.pause('failures', 'too many');
  await queue.manage({ host: 'here', pid: 1 });
  await queue.close();
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

let made = 0;
beforeEach(() => {
  path = '';
});

/** A copy, in a directory of its own. */
function copy(): string {
  const own = join(directory, String(++made));
  mkdirSync(own);
  path = join(own, 'queue.db');
  for (const suffix of ['', '-wal', '-lock']) {
    if (existsSync(`${sound}${suffix}`)) copyFileSync(`${sound}${suffix}`, `${path}${suffix}`);
  }
  return path;
}

/** Changes it past all rules. */
function edit(sql: string): void {
  const database = new DatabaseSync(copy());
  database.enableDefensive(false);
  database.exec(
    'PRAGMA writable_schema = ON; PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF',
  );
  database.exec(sql);
  database.close();
}

async function expectNothingWrong(what: string): Promise<void> {
  expect(await misuse(() => openQueue(`sqlite:${path}`, '/')), what).toEqual([]);
  if (existsSync(path))
    expect(
      await misuse(() => openQueue(`sqlite:${path}`, '/', { create: false })),
      `${what}, looked at`,
    ).toEqual([]);
  rmSync(join(path, '..'), { recursive: true });
}

test('a sound queue answers everything', async () => {
  copy();
  await expectNothingWrong('nothing');
});

const FILES: Readonly<Record<string, (bytes: Buffer) => Buffer>> = {
  'is empty': () => Buffer.alloc(0),
  'has one byte': (bytes) => bytes.subarray(0, 1),
  'is cut in its header': (bytes) => bytes.subarray(0, 60),
  'has its header only': (bytes) => bytes.subarray(0, 100),
  'is cut after a page': (bytes) => bytes.subarray(0, PAGE),
  'is cut in a page': (bytes) => bytes.subarray(0, 3 * PAGE + 17),
  'has half of its pages': (bytes) => bytes.subarray(0, Math.floor(bytes.length / 2 / PAGE) * PAGE),
  'is longer': (bytes) => Buffer.concat([bytes, Buffer.alloc(PAGE + 5, 7)]),
  'is zeros': (bytes) => Buffer.alloc(bytes.length),
  'is text': () => Buffer.from('lr,width\n0.1,\u001b]0;x\u0007\n'.repeat(200)),
  'has another page size': (bytes) => withBytes(bytes, 16, [0x02, 0x00]),
  'is of a version to come': (bytes) => withBytes(bytes, 18, [9, 9]),
  'says that it has no pages': (bytes) => withBytes(bytes, 28, [0, 0, 0, 0]),
  'says that it has more pages': (bytes) => withBytes(bytes, 28, [0, 0, 9, 9]),
  'has a list of free pages that leads nowhere': (bytes) => withBytes(bytes, 32, [0, 0, 9, 9, 0, 0, 0, 3]),
  'has another text encoding': (bytes) => withBytes(bytes, 56, [0, 0, 0, 2]),
  'has no schema': (bytes) => withBytes(bytes, 100, new Array(PAGE - 100).fill(0)),
  'has random pages': (bytes) =>
    Buffer.concat([bytes.subarray(0, PAGE), Buffer.alloc(bytes.length - PAGE, 0xa5)]),
};

function withBytes(bytes: Buffer, at: number, values: readonly number[]): Buffer {
  const changed = Buffer.from(bytes);
  changed.set(values.slice(0, changed.length - at), at);
  return changed;
}

test.each(Object.entries(FILES))('nothing goes wrong with a file that %s', async (what, change) => {
  writeFileSync(copy(), change(readFileSync(sound)));
  await expectNothingWrong(what);
});

test.each(['-wal', '-shm', '-lock'])(
  'nothing goes wrong if the file %s is something else, or a directory',
  async (suffix) => {
    writeFileSync(`${copy()}${suffix}`, Buffer.alloc(3 * PAGE, 0xa5));
    await expectNothingWrong('bytes');
    copy();
    rmSync(`${path}${suffix}`, { force: true });
    mkdirSync(`${path}${suffix}`);
    await expectNothingWrong('a directory');
  },
);

const TABLES = ['task', 'attempt', 'retracted', 'phase', 'setting'];

test.each([
  ...TABLES.map((name) => `DROP TABLE ${name}`),
  ...TABLES.map((name) => `DROP TABLE ${name}; CREATE TABLE ${name} (x)`),
  ...['task_pending', 'task_due', 'task_state', 'task_sequence', 'attempt_active', 'attempt_there'].map(
    (name) => `DROP INDEX ${name}`,
  ),
  'ALTER TABLE task RENAME COLUMN result TO outcome',
  "DELETE FROM sqlite_schema WHERE name = 'task_pending'",
  "UPDATE sqlite_schema SET sql = 'CREATE NONSENSE' WHERE name = 'task'",
  "UPDATE sqlite_schema SET rootpage = 99999 WHERE name = 'task'",
  "UPDATE sqlite_schema SET rootpage = 2 WHERE name = 'attempt'",
  'PRAGMA application_id = 0',
  'PRAGMA application_id = 5',
  'PRAGMA user_version = 0',
  'PRAGMA user_version = -1',
  'PRAGMA user_version = 77',
  'DELETE FROM setting',
  "CREATE TRIGGER bad BEFORE UPDATE ON task BEGIN SELECT raise(ABORT, 'no \u001b[31m'); END",
])('nothing goes wrong with a schema after %s', async (sql) => {
  edit(sql);
  await expectNothingWrong(sql);
});

test(`nothing goes wrong with random bytes (GPU_OWNER_TEST_SEED=${SEED})`, async () => {
  const end = performance.now() + 1_000 * SECONDS;
  const bytes = readFileSync(sound);
  for (let seed = SEED; seed < SEED + FEWEST || performance.now() < end; seed++) {
    const random = new Random(seed);
    const changed = Buffer.from(bytes);
    const flips = 1 + random.integer(20);
    // Most pages have little in them: near what is there, more happens.
    for (let flip = 0; flip < flips; flip++) {
      const at = random.integer(3) === 0 ? random.integer(200) : random.integer(bytes.length);
      changed[at] = random.integer(256);
    }
    const length = random.integer(6) === 0 ? random.integer(bytes.length) : bytes.length;
    writeFileSync(copy(), changed.subarray(0, length));
    await expectNothingWrong(`GPU_OWNER_TEST_SEED=${seed}`);
  }
}, 120_000);

test('nothing goes wrong if the index has a task that is not pending', async () => {
  edit(`DELETE FROM setting WHERE key = 'pause'; DROP INDEX task_pending;
    CREATE INDEX task_pending ON task (starts, number);
    UPDATE sqlite_schema SET sql = sql || ' WHERE state = ''pending''' WHERE name = 'task_pending';
    PRAGMA schema_version = 999`);
  const queue = await openQueue(`sqlite:${path}`, '/');
  try {
    const ended = (await all(queue.tasks({ state: 'completed' }))).map(({ task }) => task.name);
    const given: string[] = [];
    const takeAll = async () => {
      for (let attempt = await queue.take(worker); attempt !== null; attempt = await queue.take(worker)) {
        given.push(attempt.task.name);
        await queue.complete(attempt.token, {});
      }
    };
    await expect(takeAll()).rejects.toMatchObject({ code: 'ERR_QUEUE' });
    expect(ended.length).toBeGreaterThan(0);
    expect(given.filter((name) => ended.includes(name))).toEqual([]);
  } finally {
    await queue.close();
  }
});
