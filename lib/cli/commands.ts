import type { Command } from './command.ts';

/** Every command, loaded when it is called for. */
export const COMMANDS: Readonly<Record<string, () => Promise<Command>>> = {
  run: async () => (await import('./run.ts')).COMMAND,
  hold: async () => (await import('./hold.ts')).COMMAND,
  status: async () => (await import('./status.ts')).COMMAND,
  find: async () => (await import('./find.ts')).COMMAND,
  queue: async () => (await import('./queue.ts')).COMMAND,
  doctor: async () => (await import('./doctor.ts')).COMMAND,
  simulate: async () => (await import('./simulate.ts')).COMMAND,
  completion: async () => (await import('./completion.ts')).COMMAND,
};
