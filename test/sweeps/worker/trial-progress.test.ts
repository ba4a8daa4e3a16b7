// The progress file of a trial, whatever its program makes of it.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { SearchRecord, WorkerQueue } from '../../../lib/sweeps/queue/index.ts';
import { Literal } from '../../../lib/sweeps/task/index.ts';
import { TrialProgress } from '../../../lib/sweeps/worker/trial-progress.ts';

const SEARCH: SearchRecord = {
  phase: 'grid',
  trials: 1,
  metric: { name: 'loss', goal: 'minimize', pattern: null },
  stopping: null,
  seed: null,
  left: {},
  isOver: true,
};

test.for<[string, (path: string) => void, string[]]>([
  ['a file', (path) => writeFileSync(path, '{"loss": 1}\nx\n{"loss": 2}'), ['loss']],
  ['nothing', () => {}, []],
  ['a FIFO', (path) => execFileSync('mkfifo', [path]), []],
  ['a device without an end', (path) => symlinkSync('/dev/zero', path), []],
])('the progress of a trial: %s', async ([, make, names]) => {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-progress-'));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  const progress = join(directory, 'progress');
  make(progress);
  const log = { path: join(directory, 'log'), from: 0 };
  const queue = {} as WorkerQueue;
  const trial = new TrialProgress({
    queue,
    search: SEARCH,
    id: '1',
    progress,
    wandb: null,
    log,
    stop: () => {},
  });
  expect(Object.keys((await trial.end()).reported)).toEqual(names);
});

test.for<[pattern: string, line: string, value: number | null]>([
  ['loss: ([0-9.]+)', 'loss: 5.2e-05', 5.2e-5],
  ['loss: ([0-9.]+)', 'loss: 5.2E+05, acc: 1', 5.2e5],
  ['loss: ([0-9.]+)', 'loss: 3e8', 3e8],
  ['loss: ([0-9.]+)', 'loss: 0.25.', 0.25],
  ['loss: ([0-9.]*)', 'loss: nan', Number.NaN],
  ['loss: ([0-9.]*)', 'loss: -inf', Number.NEGATIVE_INFINITY],
  ['loss: ([0-9.]*)', 'loss: -0.5', -0.5],
  ['loss: ([0-9.]*)', 'loss: none', null],
  ['loss: ([0-9.]*)', 'loss: ', null],
  ['loss: (.*)', 'loss: ', null],
  ['loss.*?([0-9.]+)', 'loss = -1.5e-3', -1.5e-3],
  ['loss-([0-9.]+)', 'loss-0.5', 0.5],
  ['loss: (\\S+)', 'loss: +Infinity', Number.POSITIVE_INFINITY],
  ['loss: (\\S+)', 'loss: NaN', Number.NaN],
  ['loss: (\\S+)', 'loss: info', null],
  ['loss: ([0-9.]+)', 'loss: .5', 0.5],
  ['loss: (.+)', 'loss: 0.5 at 3', 0.5],
  ['loss: ([0-9]+)', 'loss: 1_000', 1000],
  ['loss: ([0-9]+)', 'loss: 1,234.5', null],
  ['(?:loss|err)=(?:([0-9]+)|(x))', 'err=3', 3],
  ['loss=(a)?', 'loss=1', null],
  ['[0-9.]+', 'loss 0.5', 0.5],
])('a pattern reads whole numbers: %s in %s', async ([pattern, line, value]) => {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-pattern-'));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  const log = { path: join(directory, 'log'), from: 0 };
  writeFileSync(log.path, `${line}\n`);
  const metric = { name: 'loss', goal: 'minimize', pattern } as const;
  const trial = new TrialProgress({
    queue: {} as WorkerQueue,
    search: { ...SEARCH, metric },
    id: '1',
    progress: join(directory, 'progress'),
    wandb: null,
    log,
    stop: () => {},
  });
  const { loss } = (await trial.end()).reported;
  expect(loss instanceof Literal ? loss.data : (loss ?? null)).toBe(value);
});
