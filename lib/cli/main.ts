import { asError, CommandEnd, EXIT_CODES, GPUOwnerError } from '../errors.ts';
import { closestProgram, commandInstead, commandProblem, showExtraCertificates } from '../jobs/index.ts';
import {
  closest,
  listWords,
  onWarning,
  sanitize,
  shellWords,
  showValue,
  systemError,
} from '../platform/index.ts';
import { type Command, type Commands, commandLineOf, optionsOf } from './command.ts';
import { parse, refuseLongDash, simulateMachine, UnknownWordError, usage } from './command-line.ts';
import { COMMANDS, INTERNAL } from './commands.ts';
import { commandsFor } from './foreign-words.ts';
import { versionText } from './installation.ts';
import { print, say, write } from './output.ts';

/** As in other programs. */
const VERSION = new Set(['--version', '-V', '-v', 'version']);
const HELP = new Set(['--help', '-h']);

async function main(args: readonly string[]): Promise<void> {
  showExtraCertificates();
  onWarning((message) => say(`warning: ${message}`));
  if (VERSION.has(args[0] ?? '') && args.length === 1) return print(versionText());
  const help = async () => (await import('./help.ts')).mainHelp(COMMANDS);
  const commands = Object.hasOwn(INTERNAL, args[0] ?? '') ? INTERNAL : COMMANDS;
  const isNamed = await runCommand({ called: 'gpu-owner', commands, help }, args);
  if (!isNamed) process.exitCode = EXIT_CODES.ERR_INVALID_ARGUMENT;
}

/**
 * @param called what the user has typed before the name @param args what follows
 * @throws ERR_INVALID_ARGUMENT, with the name that may have been meant
 */
async function findCommand(
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

/** The words before the names of commands, and the help that lists these. */
interface Program {
  called: string;
  commands: Commands;
  help: () => Promise<string>;
}

/** Runs the command that the arguments name, or prints help. @returns false where there is no name */
async function runCommand(program: Program, [name, ...args]: readonly string[]): Promise<boolean> {
  const { called, commands, help } = program;
  const [asked] = args;
  const isAsked = name === 'help' && asked !== undefined && asked !== 'help';
  if (name === undefined || HELP.has(name) || (name === 'help' && !isAsked)) {
    print(await help());
    return name !== undefined;
  }
  const [word, words] = isAsked ? [asked, ['--help', ...args.slice(1)]] : [name, args];
  const command = await findCommand(commands, word, called, args);
  if ('commands' in command) {
    const group = {
      called: `${called} ${word}`,
      commands: command.commands,
      help: async () => (await import('./help.ts')).helpOfGroup(`${called} ${word}`, command),
    };
    return runCommand(group, isAsked ? ['help', ...args.slice(1)] : args);
  }
  const explain = async (isWhole: boolean) =>
    print((await import('./help.ts')).helpOf(`${called} ${word}`, command, isWhole));
  if (words.length === 2 && words.includes('--all') && words.some((each) => HELP.has(each))) {
    await explain(true);
    return true;
  }
  if ('exec' in command) {
    // After `--` come the words of another program.
    const end = words.indexOf('--');
    const own = end === -1 ? words : words.slice(0, end);
    if (own.some((each) => HELP.has(each))) await explain(false);
    else await command.exec(words);
    return true;
  }
  const parsed = parse(words, optionsOf(command.groups), commandLineOf(command));
  simulateMachine(parsed.values);
  if (parsed.values.help) await explain(false);
  else await command.run(parsed);
  return true;
}

/** Failures of the machine, wherever they happen. */
const MACHINE_ERRORS = new Set([
  ...['EAGAIN', 'EDQUOT', 'EINTR', 'EIO', 'EMFILE', 'ENFILE', 'ENOMEM', 'ENOSPC', 'ENOTCONN', 'EREMOTEIO'],
  ...['EROFS', 'ESTALE', 'ETIMEDOUT'],
]);

/** The error for a user, if it is one. */
function asOurs(error: unknown): GPUOwnerError | null {
  if (error instanceof GPUOwnerError) return error;
  const { code = '', errno = 0, syscall, path } = asError(error);
  if (MACHINE_ERRORS.has(code)) {
    const what =
      path === undefined ? `a file can't be used (${syscall})` : `${sanitize(path, 500)} can't be used`;
    return new GPUOwnerError('ERR_SYSTEM', `${what}: ${systemError(-errno)}.`);
  }
  if (code !== 'ENOENT' || syscall !== 'uv_cwd') return null;
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    'the current directory was removed: cd to another one, or name the project: --project /A/DIRECTORY',
  );
}

main(process.argv.slice(2)).catch((error: unknown) => {
  const ours = error instanceof CommandEnd ? error.error : asOurs(error);
  if (ours === null) throw error;
  const { code, message } = ours;
  // For programs that start the command: several codes share an exit code.
  const unknown = ours instanceof UnknownWordError ? ours.unknown : undefined;
  if (process.env.GPU_OWNER_ERRORS === 'json')
    write(2, `${JSON.stringify({ error: { code, message, unknown } })}\n`);
  else say(message);
  process.exit(error instanceof CommandEnd ? error.exitCode : EXIT_CODES[code]);
});
