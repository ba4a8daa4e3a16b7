import { asError, CommandEnd, EXIT_CODES, GPUOwnerError } from '../errors.ts';
import { onWarning, sanitize, showExtraCertificates, systemError, usageError } from '../platform/index.ts';
import { type Command, type Commands, commandLineOf, optionsOf } from './command.ts';
import { simulateMachine } from './command-line.ts';
import { COMMANDS, INTERNAL } from './commands.ts';
import { versionText } from './installation.ts';
import { UnknownWordError } from './mistakes.ts';
import { print, say, write } from './output.ts';
import { parse } from './parser.ts';

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

/** @param called what the user has typed before the name @param args what follows it @throws ERR_INVALID_ARGUMENT */
async function findCommand(
  commands: Commands,
  name: string,
  called: string,
  args: readonly string[],
): Promise<Command> {
  const entry = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (entry !== undefined) return entry.load();
  throw (await import('./unknown-command.ts')).unknownCommand(commands, name, called, args);
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
  return usageError(
    'the current directory was removed: cd to another one, or name the project: --project /A/DIRECTORY',
  );
}

main(process.argv.slice(2)).catch((error: unknown) => {
  const ours = error instanceof CommandEnd ? error.error : asOurs(error);
  if (ours === null) throw error;
  const { code, message } = ours;
  // For programs that start the command: several codes share an exit code.
  const unknown = ours instanceof UnknownWordError ? ours.unknown : undefined;
  const hidden = ours.gpus?.some((gpu) => gpu.isHidden);
  if (process.env.GPU_OWNER_ERRORS === 'json')
    write(2, `${JSON.stringify({ error: { code, message, unknown, hidden } })}\n`);
  else say(message);
  process.exit(error instanceof CommandEnd ? error.exitCode : EXIT_CODES[code]);
});
