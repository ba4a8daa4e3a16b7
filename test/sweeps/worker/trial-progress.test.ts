// The progress file of a trial, whatever its program makes of it.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { SearchRecord, WorkerQueue } from '../../../lib/sweeps/queue/index.ts';
import { TrialProgress } from '../../../lib/sweeps/worker/trial-progress.ts';

const SEARCH: SearchRecord = {
  phase: 'grid',
  trials: 1,
  metric: { name: 'loss', goal: 'minimize' },
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
  const queue = {} as WorkerQueue;
  const trial = new TrialProgress({
    queue,
    search: SEARCH,
    id: '1',
    progress,
    wandb: null,
    stop: () => {},
  });
  expect(Object.keys((await trial.end()).reported)).toEqual(names);
});
