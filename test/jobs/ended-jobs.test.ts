import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { readJob } from '../../lib/jobs/job-record.ts';

const ENDED = Date.parse('2026-05-01T12:00:00Z');
const REQUEST = {
  start: ['submit'],
  name: 'old',
  note: null,
  command: 'true',
  count: 1,
  wanted: [],
  directory: '/tmp',
  directoryBytes: null,
  umask: 18,
  outputPattern: null,
  submitted: ENDED - 2_000,
  after: [],
  limitMs: null,
  notify: false,
  resubmits: null,
  class: 'normal',
  id: 1,
  output: '/tmp/output',
  lock: { path: '/tmp/jobs-0', device: 1, inode: 2, byte: 2 ** 32 },
};
const END = { keeper: 4, front: 5, pid: 6, exitCode: 0, ended: ENDED };

let directory: string;
let file: number;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'ended-jobs-'));
  const head = Buffer.alloc(5_120, ' ');
  head.write(`${JSON.stringify({ pid: 5, started: ENDED - 1_000 })}\n`, 0);
  head.write(`${JSON.stringify(END)}\n`, 4_096);
  const path = join(directory, 'job');
  writeFileSync(path, Buffer.concat([head, Buffer.from(`${JSON.stringify(REQUEST)}\n`)]));
  file = openSync(path, 'r');
});
afterEach(() => {
  vi.restoreAllMocks();
  closeSync(file);
  rmSync(directory, { recursive: true });
});

test('a job that has ended is read whole', () => {
  expect(readJob(file)).toMatchObject({ request: { name: 'old' }, end: END, cancellation: null });
  expect(readJob(file, ENDED)).toMatchObject({ request: { name: 'old' }, end: END });
});

test('of a job that ended too long ago to be listed, only the end is read', () => {
  const parse = vi.spyOn(JSON, 'parse');
  expect(readJob(file, ENDED + 1)).toBeNull();
  expect(parse.mock.calls.map(([text]) => text)).toEqual([JSON.stringify(END)]);
});
