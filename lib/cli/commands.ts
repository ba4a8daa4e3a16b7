import type { Commands } from './command.ts';

/** Every command. */
export const COMMANDS: Commands = {
  run: {
    summary: 'claim GPUs, run a command on them, release them when it ends',
    load: async () => (await import('./run.ts')).COMMAND,
  },
  hold: {
    summary: 'claim GPUs and hold them until standard input is closed',
    load: async () => (await import('./hold.ts')).COMMAND,
  },
  status: {
    summary: 'show every GPU, and who holds it',
    load: async () => (await import('./status.ts')).COMMAND,
  },
  find: {
    summary: 'print what CUDA_VISIBLE_DEVICES would be, without claiming',
    load: async () => (await import('./find.ts')).COMMAND,
  },
  queue: {
    summary: 'show who waits for GPUs, and for which',
    load: async () => (await import('./queue.ts')).COMMAND,
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
  completion: {
    summary: 'print a shell completion script',
    load: async () => (await import('./completion.ts')).completionOf(COMMANDS),
  },
};
