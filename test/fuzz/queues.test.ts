// Records of queues, in which anybody may have written, and the file of those who wait for GPUs.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, expect } from 'vitest';
import type { LockDirectory } from '../../lib/claims/locks/lock-directory.ts';
import { WaitQueue } from '../../lib/claims/queue/wait-queue.ts';
import { native } from '../../lib/native.ts';
import { bootId } from '../../lib/platform/system.ts';
import { TaskJob } from '../../lib/sweeps/queue/bullmq/jobs.ts';
import { readPause, readResult, taskOf } from '../../lib/sweeps/queue/records.ts';
import { stringifyValue, type Task, type Values } from '../../lib/sweeps/task/index.ts';
import { expectPrintable, fuzz, jsonValue, mutated, text } from './fuzz.ts';

const task = {
  id: 't1',
  name: 'exp1/lr=0.1',
  parameters: '{"lr":0.10,"opts":{"a":[1,2]}}',
  command: '{"words":["python","x.py"]}',
  places: '[["exp1","results_exp1"]]',
  result: '{"accuracy":0.90,"loss":NaN}',
};

/** A record of which any member may be anything that a text can be, or almost what it should be. */
function damaged<T extends Record<string, string>>(record: T): fc.Arbitrary<T> {
  const members = Object.fromEntries(
    Object.entries(record).map(([key, value]) => [
      key,
      fc.oneof(
        { weight: 6, arbitrary: fc.constant(value) },
        { weight: 2, arbitrary: mutated(fc.constant(value)) },
        { weight: 1, arbitrary: jsonValue.map((each) => JSON.stringify(each)) },
        { weight: 1, arbitrary: text() },
      ),
    ]),
  );
  return fc.record(members) as unknown as fc.Arbitrary<T>;
}

/** A record is read as a task, or the error names it. */
function check(readTask: () => Task, read: (task: Task) => Values): void {
  const found = readable(readTask);
  if (found === null) return;
  const { id, name, parameters, command, destinations } = found;
  expect(typeof id + typeof name).toBe('stringstring');
  stringifyValue(parameters);
  if ('words' in command) for (const word of command.words) expect(typeof word).toBe('string');
  else expect(typeof command.shell).toBe('string');
  for (const { phase, outputDirectory } of destinations)
    expect(typeof phase + typeof outputDirectory).toBe('stringstring');
  expect(destinations.length).toBeGreaterThan(0);
  stringifyValue(readable(() => read(found)));
}

function readable<T>(read: () => T): T | null {
  try {
    return read();
  } catch (error) {
    expect(error).toMatchObject({ code: 'ERR_QUEUE' });
    expectPrintable((error as Error).message);
    return null;
  }
}

fuzz('records of tasks are read, or an error names them', damaged(task), (record) => {
  check(
    () => taskOf(record),
    (found) => readResult(found, record.result),
  );
});

fuzz(
  'jobs are read, or an error names them, whatever their data, result and worker are',
  fc.record({
    data: fc.oneof(
      fc.constant(
        JSON.stringify({ number: 0, parameters: '{}', command: '{"shell":"x"}', places: '[["p","d"]]' }),
      ),
      text(),
      jsonValue.map((value) => JSON.stringify(value)),
    ),
    returnvalue: fc.option(text(), { nil: undefined }),
    processedBy: fc.option(
      fc.oneof(
        fc.constant('{"name":"gpu0","host":"here","pid":1,"gpus":[],"token":"t"}'),
        text(),
        jsonValue.map((value) => JSON.stringify(value)),
      ),
      { nil: undefined },
    ),
    progress: fc.oneof(fc.constant(0), jsonValue),
  }),
  (fields) => {
    const json = {
      ...fields,
      id: 't',
      name: 'exp1_0',
      opts: {},
      attemptsMade: 1,
      stalledCounter: 0,
      finishedOn: 1,
    };
    const job = readable(() => new TaskJob('t', json as never));
    if (job === null) return;
    check(
      () => job.task(),
      () => job.completion(1).result,
    );
    expect(job.starts(true)).toBeGreaterThanOrEqual(0);
  },
);

fuzz(
  'a pause is read, or an error says that it is damaged',
  fc.oneof(
    text(),
    jsonValue.map((value) => JSON.stringify(value)),
  ),
  (written) => {
    const pause = readable(() => readPause(written));
    if (pause !== null) new Date(pause.since).toISOString();
  },
);

const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-line-'));
afterAll(() => rmSync(directory, { recursive: true }));
const path = join(directory, 'line.lock');
const waiter = {
  user: 'alice',
  uid: 1,
  pid: 2,
  host: 'h',
  command: 'c',
  since: 'x',
  boot: bootId(),
  place: 0,
  count: 1,
  uuids: ['GPU-0'],
  scope: null,
};

fuzz(
  'the file of those who wait is read whatever stands in it',
  fc.tuple(
    fc.oneof(
      mutated(fc.constant(JSON.stringify(waiter)), Object.keys(waiter)),
      fc
        .dictionary(fc.constantFrom(...Object.keys(waiter)), jsonValue)
        .map((members) => JSON.stringify({ ...waiter, ...members })),
    ),
    fc.oneof(fc.constantFrom(0, 1, 4096, 2 ** 40, 2 ** 53 - 2), fc.maxSafeNat()),
    fc.uint8Array({ maxLength: 32 }),
  ),
  ([written, place, heartbeat]) => {
    const block = Buffer.alloc(4096, ' ');
    block.write(written);
    block.set(heartbeat, 4096 - heartbeat.length);
    writeFileSync(path, block);
    // No other file is there: no bookings.
    const opened = {
      all: [],
      openForProbe: () => native().fileOpenForProbe(path),
    } as unknown as LockDirectory;
    const queue = WaitQueue.open(opened);
    if (queue === null) throw new Error('it is there');
    try {
      const found = queue.waiter(place);
      if (found === null) return;
      expect(found.slot).toBe(place);
      expect(Number.isSafeInteger(found.count) && found.count > 0).toBe(true);
      for (const uuid of found.uuids) expect(typeof uuid).toBe('string');
      expectPrintable(Object.values(found.info).join(' '));
    } finally {
      queue.close();
    }
  },
);
