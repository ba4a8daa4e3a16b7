import { expect, test } from 'vitest';
import { statusPage } from '../../../lib/cli/exp/status.ts';
import type { Status } from '../../../lib/sweeps/progress/progress.ts';
import type { AttemptInfo } from '../../../lib/sweeps/queue/queue.ts';

const attempt: AttemptInfo = {
  token: 'a',
  taskId: 't-1',
  taskName: 'exp1_0',
  worker: { name: 'gpu0', host: 'elsewhere', pid: 1, gpus: ['GPU-0'] },
  since: 0,
  ended: null,
  outcome: null,
  error: null,
  log: null,
};

function page(active: number, running: AttemptInfo[]): string {
  const status: Status = {
    counts: { pending: 1, active, completed: 2, failed: 0, cancelled: 0 },
    total: 3 + active,
    completed: 2,
    ended: 2,
    running,
    manager: null,
    pause: null,
    nextTime: null,
    failures: [],
    search: null,
  };
  return statusPage(status, { width: 80, now: 1_000, options: [] });
}

test('the status tells running tasks from those that have lost their workers', () => {
  expect(page(1, [attempt])).toMatch(
    /: 2 completed, 1 running, 1 waiting\n(?![\s\S]*lost)[\s\S]*elsewhere gpu0 +exp1_0/,
  );
  expect(page(2, [attempt])).toMatch(
    / 1 running, 1 waiting\n[\s\S]*^1 task has lost its worker, and will be started again/m,
  );
  expect(page(2, [])).toMatch(
    / 0 running, 1 waiting\n[\s\S]*^2 tasks have lost their workers, and will be started again/m,
  );
  // Started in between.
  expect(page(0, [attempt])).toMatch(/ 0 running, 1 waiting\n(?![\s\S]*lost)/);
});
