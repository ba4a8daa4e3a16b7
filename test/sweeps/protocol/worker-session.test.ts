import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ManagerConnection, RemoteQueue, WorkerSession } from '../../../lib/sweeps/protocol/index.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Attempt, Queue } from '../../../lib/sweeps/queue/queue.ts';
import { Literal } from '../../../lib/sweeps/task/index.ts';
import { until } from '../../support/machine.ts';
import { rowOf, worker } from '../queue/conformance.ts';
import { spec } from '../queue/fixtures/tasks.ts';

let directory: string;
let queue: Queue;
let session: WorkerSession;
let connection: ManagerConnection;
let remote: RemoteQueue;
/** From the manager to the worker. */
let input: PassThrough;
let sent: string[];
let failed: string[];
let heard: unknown[];
const asked: string[] = [];

const begin = { silence: 1_000, grace: 100, environment: {} };

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-session-'));
  queue = await openQueue(null, directory);
  await queue.enqueue([spec({ n: new Literal(1, '1.0') }), spec({ n: 2 })]);
  await connect();
});
afterEach(async () => {
  session.close(false);
  input.end();
  await queue.close();
  rmSync(directory, { recursive: true });
});

async function connect(silence = begin.silence): Promise<void> {
  [sent, failed, heard] = [[], [], []];
  asked.length = 0;
  const lines = new PassThrough();
  const output = new PassThrough();
  input = lines;
  const drained = { drain: () => asked.push('drain'), stop: () => asked.push('stop') };
  const opened = ManagerConnection.open(lines, output);
  // Heartbeats of an earlier connection go on: they are for its own session.
  const own = new WorkerSession({
    ...{ queue, host: 'gpu1', begin: { ...begin, silence } },
    send: (line) => {
      sent.push(line);
      lines.write(`${line}\n`);
    },
    onFailure: (name) => failed.push(name),
    hear: (message) => heard.push(message),
  });
  session = own;
  output.on('data', (text: Buffer) => {
    for (const line of text.toString().split('\n').slice(0, -1)) own.receive(line);
  });
  connection = await opened;
  connection.listen(drained);
  remote = new RemoteQueue(connection);
}

const take = async () => (await remote.take({ ...worker, host: 'elsewhere' })) as Attempt;
const stateOf = async (name: string) => (await rowOf(queue, name)).state;

test('a task, its end and its result keep their spelling; the host is the one that was asked', async () => {
  const { token, task, start, isOnce } = await take();
  expect({ start, isOnce, name: task.name }).toEqual({ start: 1, isOnce: false, name: 'exp1_0' });
  expect(task.parameters.n).toEqual(new Literal(1, '1.0'));
  await remote.setLog(token, { path: 'a/log', from: 3, to: null });
  const [attempt] = await queue.attempts('living');
  expect(attempt).toMatchObject({ worker: { name: 'gpu0', host: 'gpu1' }, log: { path: 'a/log', from: 3 } });
  expect(await remote.complete(token, { y: new Literal(2.5, '2.50') })).toBe(true);
  const [completion] = await queue.completions(0, 1);
  expect(completion?.result).toEqual({ y: new Literal(2.5, '2.50') });
  expect(await remote.counts()).toMatchObject({ completed: 1, pending: 1 });
  expect(await remote.gpusPerTask()).toBe(1);
  expect([await remote.paused(), await remote.nextTime()]).toEqual([null, null]);
});

test('a failure counts; a task that is given back doesn’t', async () => {
  const first = await take();
  expect(await remote.requeue(first.token, 'the worker ends')).toBe(true);
  const second = await take();
  expect([second.task.name, second.start]).toEqual(['exp1_0', 1]);
  expect(await remote.fail(second.token, { error: 'exit code 1', retry: true })).toBe('pending');
  expect(await rowOf(queue, 'exp1_0')).toMatchObject({ starts: 1, error: 'exit code 1' });
  // As on one machine, the first line is the summary.
  const error = 'exit code 1: no \u001b[31mmemory\nThe log ends with:\nno memory';
  const third = await take();
  await remote.fail(third.token, { error, retry: true });
  expect(failed).toEqual([second.task.name, third.task.name]);
  expect((await rowOf(queue, third.task.name)).error).toBe(
    'exit code 1: no memory\nThe log ends with:\nno memory',
  );
});

test('a task that is cancelled is taken from the worker, which hears of changes', async () => {
  const { token, signal } = await take();
  const seen = remote.changeCount;
  await queue.cancel('all');
  await remote.changed(10_000, undefined, seen);
  await until(() => signal.aborted);
  expect(await remote.requeue(token, 'it was cancelled')).toBe(false);
});

test('a queue that was removed or closed is not asked without end', async () => {
  session.close(false);
  let count = 0;
  const broken = {
    get changeCount() {
      return count;
    },
    // As a queue answers whose files are gone; in the end it is silent, so that a failure of this test is none of all.
    changed: () => (count < 1_000 ? Promise.resolve(void count++) : new Promise(() => {})),
  } as unknown as Queue;
  const own = { host: 'gpu1', begin, send: () => {}, onFailure: () => {}, hear: () => {} };
  session = new WorkerSession({ ...own, queue: broken });
  await sleep(300);
  expect(count).toBeLessThan(50);
});

test('the manager’s words reach the worker, and the worker’s the manager', async () => {
  session.drain();
  session.stop();
  await until(() => asked.length === 2);
  expect(asked).toEqual(['drain', 'stop']);
  connection.tell({ say: 'hello' });
  await until(() => heard.length === 1);
  expect(heard).toEqual([{ say: 'hello' }]);
});

test('a task that is given and taken away in one piece of the conversation is taken away', async () => {
  const both = new PassThrough();
  const opened = ManagerConnection.open(both, new PassThrough());
  both.write(`${JSON.stringify({ begin })}\n`);
  const another = new RemoteQueue(await opened);
  const given = another.take(worker);
  both.write('{"id":1,"answer":{"token":"1-a","task":{},"start":1,"isOnce":false}}\n{"revoked":"1-a"}\n');
  expect((await given)?.signal.aborted).toBe(true);
  both.end();
});

test('the time of the next task doesn’t depend on the clock of the host', async () => {
  const { token } = await take();
  await queue.cancel({ ids: [(await rowOf(queue, 'exp1_1')).task.id] });
  await remote.requeue(token, 'not now', 60_000);
  const time = (await queue.nextTime()) as number;
  expect(Math.abs(((await remote.nextTime()) as number) - time)).toBeLessThan(1_000);
  const answer = JSON.parse(sent.findLast((line) => line.includes('"answer"')) as string).answer;
  expect(answer).toBeGreaterThan(50_000);
  expect(answer).toBeLessThanOrEqual(60_000);
});

test('what the manager says at once with its first words is heard', async () => {
  for (const how of ['drain', 'stop']) {
    const early = new PassThrough();
    early.write(`${JSON.stringify({ begin })}\n{"${how}":true}\n`);
    const opened = await ManagerConnection.open(early, new PassThrough());
    const ended: string[] = [];
    opened.listen({ drain: () => ended.push('drain'), stop: () => ended.push('stop') });
    expect(ended).toEqual([how]);
    early.end();
  }
});

test.each(['Welcome to gpu1', 'null', '{}', '{"begin":3}', '{"begin":{"silence":1000,"grace":100}}'])(
  'without a manager there is no connection: %s',
  async (line) => {
    const noise = new PassThrough();
    noise.write(`${line}\n`);
    await expect(ManagerConnection.open(noise, new PassThrough())).rejects.toThrow(/no manager speaks/);
  },
);

test('words of the manager that make no sense end the tasks', async () => {
  const { signal } = await take();
  input.write('{"id":\n');
  await until(() => signal.aborted);
  expect((signal.reason as Error).message).toBe('a message of the manager made no sense');
});

test('each heartbeat that is answered moves the deadline of the command', async () => {
  const { deadline } = await take();
  const before = deadline?.at as number;
  const moved: number[] = [];
  (deadline as { onMoved: unknown }).onMoved = (at: number) => moved.push(at);
  await until(() => moved.length > 2);
  expect(deadline?.at).toBeGreaterThan(before);
  expect(deadline?.grace).toBe(begin.grace);
});

test('when the connection ends, the worker’s tasks end, and are given out again once they have', async () => {
  await queue.enqueue([spec({ n: 2 })]);
  const { signal } = await take();
  session.close(false);
  input.end();
  await until(() => signal.aborted);
  await expect(take()).rejects.toThrow('the connection to the manager ended');
  await expect(remote.changed(10_000)).rejects.toThrow('the connection');
  expect(await stateOf('exp1_0')).toBe('active');
  await until(async () => (await stateOf('exp1_0')) === 'pending');
  expect(await rowOf(queue, 'exp1_0')).toMatchObject({ starts: 0, error: 'the connection to gpu1 broke' });
});

test('a manager that is silent is lost', async () => {
  const { signal } = await take();
  input.removeAllListeners('data'); // nothing arrives any more
  input.pause();
  await until(() => signal.aborted);
  expect((signal.reason as Error).message).toMatch(/nothing was heard of the manager for 1 s/);
});

test('a task without retries has failed when its connection breaks', async () => {
  await queue.cancel('all');
  await queue.enqueue([{ ...spec({ n: 3 }), retries: 0 }]);
  expect((await take()).isOnce).toBe(true);
  session.close(false);
  await until(async () => (await stateOf('exp1_2')) === 'failed');
  expect((await rowOf(queue, 'exp1_2')).error).toMatch(
    /the connection to gpu1 broke; it is not started again/,
  );
});

test('a host that lies reaches no task of others, and what makes no sense ends its connection', async () => {
  const other = await queue.take(worker);
  const ask = async (call: string, ...args: unknown[]) => {
    session.receive(JSON.stringify({ id: 7_000, call, args }));
    await until(() => sent.some((line) => line.includes('7000')));
    return sent.splice(0).find((line) => line.includes('7000'));
  };
  for (const call of ['complete', 'requeue', 'setLog', 'fail'])
    expect(await ask(call, other?.token, {}, 0)).toMatch(/"error"/);
  expect(await ask('take', { name: 'x', pid: -1, gpus: [] }, {})).toMatch(/"error"/);
  expect(await ask('take', { name: '\u001b[2Jx', pid: 1, gpus: [] }, {})).toMatch(/"token"/);
  const [, lied] = await queue.attempts('living');
  expect(lied?.worker).toMatchObject({ host: 'gpu1', name: expect.not.stringContaining('\u001b') });
  expect(await ask('close')).toMatch(/no question/);
  for (const line of ['', 'x', '[]', '3', '{"call":{}}', '{"id":-1,"call":"take","args":[]}'])
    expect(() => session.receive(line), line).toThrow();
  expect(await stateOf('exp1_0')).toBe('active');
});

test('a host gets as many tasks as one machine can run', async () => {
  await queue.enqueue(Array.from({ length: 300 }, (_, n) => spec({ n: 10 + n })));
  session.close(true);
  await connect(60_000); // heartbeats, which end the connection, are answered after what was asked before
  const attempts = await Promise.all(Array.from({ length: 300 }, take));
  expect(attempts.filter((attempt) => attempt !== null)).toHaveLength(256);
  expect(await take()).toBe(null);
});
