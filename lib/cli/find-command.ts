// The command that a name means, or what was meant by a word that is none.
import { GPUOwnerError } from '../errors.ts';
import { closestProgram, commandInstead, commandProblem } from '../jobs/index.ts';
import { closest, listWords, sanitize, shellWords, showValue } from '../platform/index.ts';
import { type Command, type Commands, commandLineOf, optionsOf } from './command.ts';
import { usage } from './command-line.ts';
import { COMMANDS } from './commands.ts';
import { commandsFor } from './foreign-words.ts';
import { refuseLongDash, UnknownWordError } from './mistakes.ts';
import { parse } from './parser.ts';

/**
 * @param called what the user has typed before the name @param args what follows
 * @throws ERR_INVALID_ARGUMENT, with the name that may have been meant
 */
export async function findCommand(
  commands: Commands,
  name: string,
  called: string,
  args: readonly string[],
): Promise<Command> {
  const entry = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (entry !== undefined) return entry.load();
  const names = Object.keys(commands);
  const near = closest(name, names);
  const ours = commandsFor(name, names);
  const meant = ours.length > 0 || near === null ? ours : [near];
  if (commands === COMMANDS) {
    refuseLongDash(name);
    const isOption = name.startsWith('-');
    const words = [name, ...args];
    const line = isOption ? await lineOfOptions(words) : meant.length === 0 ? lineOfProgram(words) : null;
    const what = isOption ? 'options follow the name of a command' : `there is no command ${showValue(name)}`;
    if (line !== null) throw usage(`${what}; write: ${sanitize(shellWords(['gpu-owner', ...line]), 200)}`);
    if (isOption) throw usage(`${what}; see ${called} --help`);
  }
  const remedy = listWords(
    meant.map((each) => `'${each}'`),
    'or',
  );
  throw new UnknownWordError(
    `there is no command ${showValue(name)}`,
    remedy ? `did you mean ${remedy}?` : `see ${called} --help`,
  );
}

/** Commands that options without a command may be for, the likeliest first. */
const LIKELY = ['run', 'submit', 'status', 'jobs', 'queue', 'top', 'web', 'report'];

/** The command line that was meant by one that begins with options; null: no command takes them. */
async function lineOfOptions(words: readonly string[]): Promise<string[] | null> {
  const at = words.findIndex((word) => Object.hasOwn(COMMANDS, word));
  const named = words[at];
  const rest = named === undefined ? words : words.toSpliced(at, 1);
  for (const name of named === undefined ? LIKELY : [named]) {
    const command = await COMMANDS[name]?.load();
    if (command === undefined || !('run' in command)) continue;
    try {
      const parsed = parse(rest, optionsOf(command.groups), commandLineOf(command));
      if (command.operands !== 'command-line') {
        if (parsed.positionals.length === 0 || command.operands !== undefined) return [name, ...rest];
      } else if (parsed.command.length === 0)
        return [name, ...rest, ...(rest.includes('--') ? [] : ['--']), 'COMMAND'];
      else if (commandProblem(parsed.command) === null) return [name, ...rest];
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
    }
  }
  return null;
}

/** The command line that was meant by a program and its arguments; null: there is no such program. */
function lineOfProgram(words: readonly string[]): string[] | null {
  if (commandProblem(words) === null) return ['run', ...words];
  const instead = commandInstead(words);
  if (instead !== null) return ['run', ...instead];
  const [program = '', ...rest] = words;
  const meant = rest.length === 0 || program.length < 5 ? null : closestProgram(program);
  return meant === null ? null : ['run', meant, ...rest];
}
