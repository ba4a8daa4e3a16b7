import type { Command } from './command.ts';

/** The commands that work on a project's experiments. */
export const COMMAND: Command = {
  about: `Runs experiments: the tasks of a sweep, each on its own GPUs, until every task has a row in the table of results. You can stop, kill and restart it at any time: completed tasks stay completed.`,
  commands: {
    run: {
      summary: 'run a sweep to its end: workers, tables of results, progress',
      load: async () => (await import('./exp/run.ts')).COMMAND,
    },
    worker: {
      summary: 'add workers to a running sweep',
      load: async () => (await import('./exp/worker.ts')).COMMAND,
    },
    manager: {
      summary: 'give the tasks of a sweep to other workers; write the tables',
      load: async () => (await import('./exp/manager.ts')).COMMAND,
    },
    status: {
      summary: 'show what is done, what runs where, and what has failed',
      load: async () => (await import('./exp/status.ts')).COMMAND,
    },
    logs: {
      summary: 'print the output of a task',
      load: async () => (await import('./exp/logs.ts')).COMMAND,
    },
    retry: {
      summary: 'start failed or other tasks again',
      load: async () => (await import('./exp/retry.ts')).COMMAND,
    },
    pause: {
      summary: 'start no more tasks until `exp resume`',
      load: async () => (await import('./exp/pause.ts')).PAUSE,
    },
    resume: {
      summary: 'continue after a pause',
      load: async () => (await import('./exp/pause.ts')).RESUME,
    },
    cancel: {
      summary: 'cancel tasks; stop running ones',
      load: async () => (await import('./exp/cancel.ts')).COMMAND,
    },
    export: {
      summary: 'write all results to one table',
      load: async () => (await import('./exp/export.ts')).COMMAND,
    },
  },
  notes: `gpu-owner exp COMMAND --help explains each. To try it:
  gpu-owner exp run --simulate 4 --gpus all --grid lr=0.1,0.01 -- echo {lr}`,
};
