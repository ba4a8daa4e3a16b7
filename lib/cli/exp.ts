import type { Command } from './command.ts';

/** The commands that work on a project's experiments. */
export const COMMAND: Command = {
  about: `Runs experiments: the tasks of a sweep, each on GPUs of its own, until every one has its row in the table of results. It can be ended, killed and started again at any time: what is done stays done.`,
  commands: {
    run: {
      summary: 'run a sweep to its end: workers, tables of results, progress',
      load: async () => (await import('./exp/run.ts')).COMMAND,
    },
    plan: {
      summary: 'show what `exp run` would do, and why',
      load: async () => (await import('./exp/plan.ts')).COMMAND,
    },
    worker: {
      summary: 'add workers to a sweep that runs',
      load: async () => (await import('./exp/worker.ts')).COMMAND,
    },
    manager: {
      summary: 'give the tasks of a sweep to workers elsewhere; write the tables',
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
      summary: 'start failed tasks again, or others',
      load: async () => (await import('./exp/retry.ts')).COMMAND,
    },
    pause: {
      summary: 'start no more tasks until resume',
      load: async () => (await import('./exp/pause.ts')).COMMAND,
    },
    resume: {
      summary: 'go on after a pause',
      load: async () => (await import('./exp/resume.ts')).COMMAND,
    },
    cancel: {
      summary: 'cancel tasks; end those that run',
      load: async () => (await import('./exp/cancel.ts')).COMMAND,
    },
    export: {
      summary: 'write all results to one table',
      load: async () => (await import('./exp/export.ts')).COMMAND,
    },
  },
  notes: `gpu-owner exp COMMAND --help explains each. To begin with:
  gpu-owner exp run --simulate 4 --gpus all --grid lr=0.1,0.01 -- echo {lr}`,
};
