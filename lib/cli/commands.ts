import { type Commands, entry } from './command.ts';

/** Every command. */
export const COMMANDS: Commands = {
  run: entry('claim GPUs, run a command on them, release them when it ends', () => import('./run.ts')),
  submit: entry('run a command in the background; print its number', () => import('./submit.ts')),
  jobs: entry('list your jobs: waiting, running, ended', () => import('./jobs.ts')),
  logs: entry('print the output of a job', () => import('./logs.ts')),
  wait: entry('wait until jobs have ended, and return their exit code', () => import('./wait.ts')),
  cancel: entry('cancel jobs', () => import('./cancel.ts')),
  resubmit: entry('submit ended or lost jobs once more', () => import('./resubmit.ts')),
  hold: entry('claim GPUs and hold them until standard input is closed', () => import('./hold.ts')),
  status: entry('show every GPU, and who holds it', () => import('./status.ts')),
  top: entry('watch GPUs, jobs and the wait queue', () => import('./top.ts')),
  web: entry('serve a page that shows GPUs, jobs and the wait queue', () => import('./web.ts')),
  mcp: entry('let a coding agent see GPUs, and submit and follow jobs', () => import('./mcp.ts')),
  find: entry('print what CUDA_VISIBLE_DEVICES would be, without claiming', () => import('./find.ts')),
  report: entry('show who used how many GPU hours, and waited for how long', () => import('./report.ts')),
  queue: entry('show who waits for GPUs, and for which', () => import('./queue.ts')),
  book: entry('book GPUs for a time', () => import('./book.ts')),
  bookings: entry('show which GPUs are booked, and cancel bookings', () => import('./bookings.ts')),
  enforce: entry(
    'end programs on GPUs that others have leased, after a warning',
    () => import('./enforce.ts'),
  ),
  metrics: entry('print or serve metrics for Prometheus', () => import('./metrics.ts')),
  exp: entry('run experiments: a sweep of tasks on many GPUs, with results', () => import('./exp.ts')),
  doctor: entry('report what is wrong on this machine, and what to do', () => import('./doctor.ts')),
  selftest: entry('prove on this machine that claims work with its driver', () => import('./selftest.ts')),
  simulate: entry('control a simulated machine', () => import('./simulate.ts')),
  docs: entry('print a page of the documentation', () => import('./docs.ts')),
  completion: entry('print a shell completion script', () => import('./completion.ts')),
};

/** Commands by which gpu-owner starts itself: neither help nor completion shows them. */
export const INTERNAL: Commands = {
  __complete: {
    summary: 'propose words for a command line',
    load: async () => (await import('./proposals.ts')).completeOf(COMMANDS),
  },
  'check-part': entry(
    'make some checks of the doctor or of the self-test',
    () => import('./selftest.ts'),
    'CHECK_PART',
  ),
  'notify-job': entry('tell of the start or end of a job', () => import('./internal.ts'), 'NOTIFY_JOB'),
  mover: entry('move waiting jobs between machines', () => import('./internal.ts'), 'MOVER'),
};
