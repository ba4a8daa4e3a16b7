import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { openSweep } from '../../../lib/sweeps/files/index.ts';
import { AskedTasks } from '../../../lib/sweeps/manager/asked-tasks.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';

const WORKER = { name: 'gpu0', host: 'here', pid: process.pid, gpus: ['GPU-0'] };

let project: string;
let queue: Queue;

beforeEach(async () => {
  project = mkdtempSync(join(tmpdir(), 'asked-tasks-'));
  queue = await openQueue(null, project);
});
afterEach(async () => {
  await queue.close();
  rmSync(project, { recursive: true });
});

const sweepOf = (...grid: string[]) => openSweep({ project, grid, command: ['true'] });

async function add(...grid: string[]) {
  const sweep = await sweepOf(...grid);
  await queue.enqueue(sweep.tasks());
  return sweep;
}

async function endNext(isGood: boolean): Promise<void> {
  const token = (await queue.take(WORKER))?.token ?? '';
  if (isGood) await queue.complete(token, {});
  else await queue.fail(token, { error: 'exit code 1', retry: false });
}

test('tasks that a call asked for are counted apart from those of other sweeps, whatever becomes of these', async () => {
  await add('x=1..3');
  await endNext(false);
  const asked = new AskedTasks(await add('y=1,2', 'z=1'));
  const read = async () => {
    const { asked: mine, others } = await asked.split(queue, await queue.counts());
    return [mine, others].map(({ total, completed, ended, counts }) => [
      total,
      completed,
      ended,
      counts.failed,
    ]);
  };
  expect(await read()).toEqual([
    [2, 0, 0, 0],
    [3, 0, 1, 1],
  ]);
  await endNext(true); // one of the others
  await endNext(false);
  expect(await read()).toEqual([
    [2, 0, 0, 0],
    [3, 1, 3, 2],
  ]);
  await endNext(true); // mine
  await add('w=1'); // by another process
  await endNext(true);
  expect(await read()).toEqual([
    [2, 2, 2, 0],
    [4, 1, 3, 2],
  ]);
});

test('all tasks are meant where no sweep was given, or the queue has no others', async () => {
  const sweep = await add('x=1..3');
  const counts = await queue.counts();
  const unread = {
    tasks: () => expect.unreachable(),
    lookUp: () => expect.unreachable(),
  };
  for (const asked of [new AskedTasks(null), new AskedTasks(sweep)]) {
    expect(await asked.split(unread, counts)).toMatchObject({ asked: { total: 3 }, others: { total: 0 } });
  }
});
