import { commandProblem } from '../jobs/index.ts';
import { closest, sanitize, shellWords, showValue, usageError } from '../platform/index.ts';
import type { Commands } from './command.ts';
import { COMMANDS } from './commands.ts';
import { UnknownWordError } from './mistakes.ts';

/** The error for a word that names none of the commands. @param called what the user has typed before it @param args what follows it */
export function unknownCommand(
  commands: Commands,
  name: string,
  called: string,
  args: readonly string[],
): Error {
  if (name.startsWith('-')) return usageError(`options follow the name of a command; see ${called} --help`);
  const unknown = `there is no command ${showValue(name)}`;
  const near = closest(name, Object.keys(commands));
  if (near !== null) return new UnknownWordError(unknown, `did you mean '${near}'?`);
  if (commands !== COMMANDS || commandProblem([name]) !== null)
    return new UnknownWordError(unknown, `see ${called} --help`);
  return usageError(`${unknown}; write: ${sanitize(shellWords(['gpu-owner', 'run', name, ...args]), 200)}`);
}
