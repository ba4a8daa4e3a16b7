import type { Commands } from './command.ts';

/** Every command. */
export const COMMANDS: Commands = {
  run: {
    summary: 'claim GPUs, run a command on them, release them when it ends',
    load: async () => (await import('./run.ts')).COMMAND,
  },
  submit: {
    summary: 'run a command in the background; print its number',
    load: async () => (await import('./submit.ts')).COMMAND,
  },
  jobs: {
    summary: 'list your jobs: waiting, running, ended',
    load: async () => (await import('./jobs.ts')).COMMAND,
  },
  logs: {
    summary: 'print the output of a job',
    load: async () => (await import('./logs.ts')).COMMAND,
  },
  wait: {
    summary: 'wait until jobs have ended, and return their exit code',
    load: async () => (await import('./wait.ts')).COMMAND,
  },
  cancel: {
    summary: 'cancel jobs',
    load: async () => (await import('./cancel.ts')).COMMAND,
  },
  resubmit: {
    summary: 'submit ended or lost jobs once more',
    load: async () => (await import('./resubmit.ts')).COMMAND,
  },
  hold: {
    summary: 'claim GPUs and hold them until standard input is closed',
    load: async () => (await import('./hold.ts')).COMMAND,
  },
  status: {
    summary: 'show every GPU, and who holds it',
    load: async () => (await import('./status.ts')).COMMAND,
  },
  top: {
    summary: 'watch GPUs, jobs and the wait queue',
    load: async () => (await import('./top.ts')).COMMAND,
  },
  web: {
    summary: 'serve a page that shows GPUs, jobs and the wait queue',
    load: async () => (await import('./web.ts')).COMMAND,
  },
  mcp: {
    summary: 'let a coding agent see GPUs, and submit and follow jobs',
    load: async () => (await import('./mcp.ts')).COMMAND,
  },
  find: {
    summary: 'print what CUDA_VISIBLE_DEVICES would be, without claiming',
    load: async () => (await import('./find.ts')).COMMAND,
  },
  report: {
    summary: 'show who used how many GPU hours, and waited for how long',
    load: async () => (await import('./report.ts')).COMMAND,
  },
  queue: {
    summary: 'show who waits for GPUs, and for which',
    load: async () => (await import('./queue.ts')).COMMAND,
  },
  book: {
    summary: 'book GPUs for a time',
    load: async () => (await import('./book.ts')).COMMAND,
  },
  bookings: {
    summary: 'show which GPUs are booked, and cancel bookings',
    load: async () => (await import('./bookings.ts')).COMMAND,
  },
  enforce: {
    summary: 'end programs on GPUs that others have leased, after a warning',
    load: async () => (await import('./enforce.ts')).COMMAND,
  },
  metrics: {
    summary: 'print or serve metrics for Prometheus',
    load: async () => (await import('./metrics.ts')).COMMAND,
  },
  exp: {
    summary: 'run experiments: a sweep of tasks on many GPUs, with results',
    load: async () => (await import('./exp.ts')).COMMAND,
  },
  doctor: {
    summary: 'report what is wrong on this machine, and what to do',
    load: async () => (await import('./doctor.ts')).COMMAND,
  },
  selftest: {
    summary: 'prove on this machine that claims work with its driver',
    load: async () => (await import('./selftest.ts')).COMMAND,
  },
  simulate: {
    summary: 'control a simulated machine',
    load: async () => (await import('./simulate.ts')).COMMAND,
  },
  docs: {
    summary: 'print a page of the documentation',
    load: async () => (await import('./docs.ts')).COMMAND,
  },
  completion: {
    summary: 'print a shell completion script',
    load: async () => (await import('./completion.ts')).COMPLETION,
  },
};

/** Commands by which gpu-owner starts itself: neither help nor completion shows them. */
export const INTERNAL: Commands = {
  __complete: {
    summary: 'propose words for a command line',
    load: async () => (await import('./completion.ts')).completeOf(COMMANDS),
  },
  'notify-job': {
    summary: 'tell of the start or end of a job',
    load: async () => (await import('./internal.ts')).NOTIFY_JOB,
  },
  'keep-environment': {
    summary: 'keep variables for the command that comes next over ssh',
    load: async () => (await import('./internal.ts')).KEEP_ENVIRONMENT,
  },
  mover: {
    summary: 'move waiting jobs between machines',
    load: async () => (await import('./internal.ts')).MOVER,
  },
  'settle-move': {
    summary: 'decide where a job that moves starts',
    load: async () => (await import('./internal.ts')).SETTLE_MOVE,
  },
  'tell-job': {
    summary: "tell a job that it computes on others' GPUs",
    load: async () => (await import('./internal.ts')).TELL_JOB,
  },
};
