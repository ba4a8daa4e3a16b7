import { type Command, entry } from './command.ts';

/** The commands that work on a project's experiments. */
export const COMMAND: Command = {
  about: `Runs experiments: the tasks of a sweep, each on its own GPUs, until every task has a row in the table of results. You can stop, kill and restart it at any time: completed tasks stay completed.`,
  commands: {
    run: entry('run a sweep to its end: workers, tables of results, progress', () => import('./exp/run.ts')),
    worker: entry('add workers to a running sweep', () => import('./exp/worker.ts')),
    manager: entry(
      'give the tasks of a sweep to other workers; write the tables',
      () => import('./exp/manager.ts'),
    ),
    status: entry('show what is done, what runs where, and what has failed', () => import('./exp/status.ts')),
    logs: entry('print the output of a task', () => import('./exp/logs.ts')),
    retry: entry('start failed or other tasks again', () => import('./exp/retry.ts')),
    pause: entry('start no more tasks until `exp resume`', () => import('./exp/pause.ts'), 'PAUSE'),
    resume: entry('continue after a pause', () => import('./exp/pause.ts'), 'RESUME'),
    cancel: entry('cancel tasks; stop running ones', () => import('./exp/cancel.ts')),
    export: entry('write all results to one table', () => import('./exp/export.ts')),
  },
  notes: `gpu-owner exp COMMAND --help explains each. To try it:
  gpu-owner exp run --simulate 4 --gpus all --grid lr=0.1,0.01 -- echo {lr}`,
};
