import { GPUOwnerError } from '../errors.ts';
import { closest, showValue } from '../platform/index.ts';
import type { Command, Commands } from './command.ts';

/** Every command. */
export const COMMANDS: Commands = {
  run: async () => (await import('./run.ts')).COMMAND,
  hold: async () => (await import('./hold.ts')).COMMAND,
  status: async () => (await import('./status.ts')).COMMAND,
  find: async () => (await import('./find.ts')).COMMAND,
  queue: async () => (await import('./queue.ts')).COMMAND,
  exp: async () => (await import('./exp.ts')).COMMAND,
  doctor: async () => (await import('./doctor.ts')).COMMAND,
  simulate: async () => (await import('./simulate.ts')).COMMAND,
  completion: async () => (await import('./completion.ts')).COMMAND,
};

/** @param program what the user has typed before the name. @throws ERR_INVALID_ARGUMENT, with the name that may have been meant */
export async function findCommand(commands: Commands, name: string, program: string): Promise<Command> {
  const load = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (load !== undefined) return load();
  const meant = closest(name, Object.keys(commands));
  throw new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `there is no command ${showValue(name)}${meant ? `; did you mean '${meant}'?` : `; see ${program} --help`}`,
  );
}
