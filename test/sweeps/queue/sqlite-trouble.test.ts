import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from '@photostructure/sqlite';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { pause, until } from '../../support/machine.ts';
import { all, rowOf, takeFrom, worker } from './conformance.ts';
import { plainTasks, spec } from './fixtures/tasks.ts';
import { Remote } from './remote.ts';

/** Full disks, reboots, and others who are in the way. */

let directory: string;
let path: string;
const queues: Queue[] = [];
const remotes: Remote[] = [];

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-queue-'));
  path = join(directory, 'queue.db');
});

afterEach(async () => {
  for (const queue of queues.splice(0)) await queue.close();
  for (const remote of remotes.splice(0)) await remote.kill();
  rmSync(directory, { recursive: true, force: true });
});

async function open(file = path): Promise<Queue> {
  const queue = await openQueue(`sqlite:${file}`, directory);
  queues.push(queue);
  return queue;
}

async function remote(): Promise<Remote> {
  const started = await Remote.start(`sqlite:${path}`, directory);
  remotes.push(started);
  return started;
}

test('a machine that was restarted costs no start', async () => {
  const queue = await open();
  await queue.enqueue([spec({ n: 0 })]);
  for (let times = 0; times < 4; times++) {
    const { start } = await takeFrom(queue);
    expect(start).toBe(1);
    const raw = new DatabaseSync(path);
    raw.exec(`UPDATE attempt SET boot = 'another' WHERE outcome IS NULL`);
    raw.close();
    expect(await queue.attempts('living')).toEqual([]);
  }
  expect((await takeFrom(queue)).start).toBe(1);
  const [attempt] = await queue.attempts({ taskId: (await rowOf(queue, 'exp1_0')).task.id });
  expect(attempt).toMatchObject({ outcome: 'lost', error: expect.stringMatching(/restarted/) });
});

test('a client with a lifetime is not of this machine, so that its restart changes nothing', async () => {
  const queue = await open();
  await queue.enqueue([spec({ n: 0 })]);
  const { token } = await takeFrom(queue, { lifetime: 60_000 });
  const raw = new DatabaseSync(path);
  raw.exec(`UPDATE attempt SET boot = 'another'`);
  raw.close();
  expect(await queue.take(worker)).toBeNull();
  expect(await queue.complete(token, {})).toBe(true);
});

test('a process that waits for another writer goes on with everything else', async () => {
  const queue = await open();
  await queue.enqueue([spec({ n: 0 })]);
  const { token } = await takeFrom(queue);
  const other = new DatabaseSync(path);
  other.exec('BEGIN IMMEDIATE');
  let done = false;
  const completion = queue.complete(token, { a: 1 }).then((answer) => {
    done = true;
    return answer;
  });
  let turns = 0;
  for (const end = performance.now() + 1_500; performance.now() < end; turns++) await pause(1);
  expect(done).toBe(false);
  expect(turns).toBeGreaterThan(20);
  expect(await queue.counts()).toMatchObject({ active: 1 }); // reading needs no turn
  other.exec('ROLLBACK');
  expect(await completion).toBe(true);
  other.close();
});

test('workers get their turn while a long sweep is enqueued', async () => {
  const queue = await open();
  const manager = await remote();
  let enqueued = false;
  void manager.ask('enqueue', 300_000, 'exp1').then(() => {
    enqueued = true;
  });
  await until(async () => (await queue.counts()).pending > 0);
  let completed = 0;
  while (!enqueued && completed < 5) {
    await queue.complete((await takeFrom(queue)).token, {});
    completed++;
  }
  expect(completed).toBe(5);
  expect(enqueued).toBe(false);
  await manager.kill();
});

test('a stopped process that is in the middle of a transaction is waited for', async () => {
  const queue = await open();
  const manager = await remote();
  void manager.ask('enqueue', 50_000, 'exp1').catch(() => {});
  await until(async () => (await queue.counts()).pending > 0);
  manager.signal('SIGSTOP');
  const taking = takeFrom(queue);
  await pause(300);
  manager.signal('SIGCONT');
  const { token } = await taking;
  expect(await queue.complete(token, {})).toBe(true);
  await manager.kill();
});

test('one process may have many attempts', async () => {
  const queue = await open();
  await queue.enqueue(plainTasks(200));
  const attempts = await Promise.all(Array.from({ length: 200 }, () => takeFrom(queue)));
  expect(new Set(attempts.map(({ task }) => task.id)).size).toBe(200);
  expect(await queue.attempts('living')).toHaveLength(200);
  await Promise.all(attempts.map(({ token }) => queue.complete(token, {})));
  expect(await queue.counts()).toMatchObject({ completed: 200 });
});

const mounted = mkdtempSync(join(tmpdir(), 'gpu-owner-full-'));
const mount = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', mounted]);
const whyNotFull = mount.status === 0 ? null : 'needs root, to mount a small file system';
if (mount.status === 0) spawnSync('umount', [mounted]);
rmSync(mounted, { recursive: true });

test('a clock that is set back keeps no task waiting that was given back with a delay', async () => {
  const queue = await open();
  await queue.enqueue(plainTasks(1));
  const clock = vi.spyOn(Date, 'now').mockReturnValue(Date.now() + 86_400_000);
  try {
    await queue.requeue((await takeFrom(queue)).token, 'busy', 3_600_000);
    const time = (await queue.nextTime()) ?? 0;
    expect(time - Date.now()).toBe(60_000);
    expect(await queue.take(worker)).toBeNull();
  } finally {
    clock.mockRestore();
  }
  expect(await queue.nextTime()).toBeNull();
  await takeFrom(queue);
});

describe.skipIf(whyNotFull !== null)(`a full disk${whyNotFull === null ? '' : ` (${whyNotFull})`}`, () => {
  let disk: string;
  beforeEach(() => {
    disk = join(directory, 'disk');
    mkdirSync(disk);
    spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', disk]);
  });
  afterEach(() => {
    // Queues of this process have files open there.
    spawnSync('umount', ['-l', disk]);
  });

  test('keeps what was acknowledged, and says what to do', async () => {
    const file = join(disk, 'queue.db');
    const queue = await open(file);
    await queue.enqueue(plainTasks(20));
    const { token } = await takeFrom(queue);
    writeFileSync(join(disk, 'ballast'), '');
    spawnSync('sh', ['-c', `cat /dev/zero > '${join(disk, 'ballast')}'`]);
    const big = { text: 'x'.repeat(100_000) };
    const error = await queue.complete(token, big).catch((reason) => reason);
    expect(error).toMatchObject({ code: 'ERR_QUEUE', message: expect.stringMatching(/disk.*full.*room/is) });
    await expect(queue.enqueue(plainTasks(5_000, 'exp2'))).rejects.toMatchObject({ code: 'ERR_QUEUE' });
    expect(await queue.counts()).toMatchObject({ active: 1, completed: 0 });
    expect(await queue.attempts('living')).toHaveLength(1);

    rmSync(join(disk, 'ballast'));
    expect(await queue.complete(token, big)).toBe(true);
    expect(await queue.counts()).toMatchObject({ pending: 19, active: 0, completed: 1 });
    const again = await open(file);
    expect((await again.completions(0, 2)).map(({ result }) => result)).toEqual([big]);
    expect(await all(again.tasks())).toHaveLength(20);
  });

  test('makes an error that says so, if it is full from the start', async () => {
    spawnSync('sh', ['-c', `cat /dev/zero > '${join(disk, 'ballast')}'`]);
    const error = await open(join(disk, 'queue.db')).catch((reason) => reason);
    expect(error).toMatchObject({ code: 'ERR_QUEUE', message: expect.stringMatching(/full|space/i) });
    rmSync(join(disk, 'ballast'));
    expect(await (await open(join(disk, 'queue.db'))).counts()).toMatchObject({ pending: 0 });
  });
});
