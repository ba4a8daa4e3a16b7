import { closest, showValue } from '../platform/index.ts';
import { EVERY, type Option, type OptionTable, type Parsed, parse, usage } from './options.ts';

/** What may follow a command's options. */
export type Operands =
  /** A command line of the user's. */
  | 'command-line'
  /** Files, and behind `--` a command line of the user's. */
  | 'files-and-command-line'
  /** Words: the first, and what may follow it. */
  | { first: readonly string[]; after?: Readonly<Record<string, readonly string[]>> };

/** Options that help shows together. */
export interface OptionGroup {
  title?: string;
  /** Operands that are explained among them: what is typed, and its help. */
  operands?: readonly (readonly [label: string, help: string])[];
  options: OptionTable;
  /** Text below them. */
  notes?: string;
}

/** A command of ours: its help and completion are made from this, and its arguments parsed by it. */
export interface PlainCommand {
  /** What follows its name in the first line of help. */
  usage: string;
  /** Paragraphs; those that begin with spaces are shown as they are. */
  about: string;
  groups: readonly OptionGroup[];
  /** Text at the end, as `about`. */
  notes?: string;
  operands?: Operands;
  run: (parsed: Parsed) => Promise<void> | void;
}

/** Commands with a word before their names, as `exp`. */
export interface CommandGroup {
  about: string;
  commands: Commands;
  notes: string;
}

/** Another program, which explains itself and parses its arguments. */
export interface ForeignCommand {
  exec: (args: readonly string[]) => void;
  /** For completion. */
  describe: () => { options: OptionTable; operands: Operands };
}

/** A command whose help is a text and whose options are explained there: those of `exp`, until they are described as others. */
export interface TextCommand {
  run: (args: readonly string[]) => Promise<void>;
  help: string;
  options: Readonly<
    Record<string, Option | { type: 'string' | 'boolean'; short?: string; multiple?: boolean }>
  >;
  operands?: Operands;
}

export type Command = PlainCommand | CommandGroup | ForeignCommand | TextCommand;

/** Commands by name in the order of help, loaded when they are called for. */
export type Commands = Readonly<Record<string, CommandEntry>>;

export interface CommandEntry {
  /** A verb phrase for the list of commands. */
  summary: string;
  load: () => Promise<Command>;
}

/** Every option that a command parses. */
export function optionsOf(groups: readonly OptionGroup[]): OptionTable {
  return Object.assign({}, ...groups.map(({ options }) => options), EVERY) as OptionTable;
}

/** @param program what the user has typed before the name. @throws ERR_INVALID_ARGUMENT, with the name that may have been meant */
export async function findCommand(commands: Commands, name: string, program: string): Promise<Command> {
  const entry = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (entry !== undefined) return entry.load();
  const meant = closest(name, Object.keys(commands));
  throw usage(
    `there is no command ${showValue(name)}${meant ? `; did you mean '${meant}'?` : `; see ${program} --help`}`,
  );
}

const COMMAND_LINES = { 'command-line': 'word', 'files-and-command-line': 'dashes' } as const;

/** What surrounds commands: the words before their names, and the help that lists them. */
export interface Program {
  called: string;
  commands: Commands;
  help: () => Promise<string>;
  print: (text: string) => void;
}

/** Runs the command that the arguments name, or prints help. @returns false where there is no name */
export async function runCommand(program: Program, [name, ...args]: readonly string[]): Promise<boolean> {
  const { called, commands, help, print } = program;
  const isAsked = name === 'help' && args[0] !== undefined && args[0] !== 'help';
  if (name === undefined || name === '--help' || name === '-h' || (name === 'help' && !isAsked)) {
    print(await help());
    return name !== undefined;
  }
  const [word, words] = isAsked ? [args[0] as string, ['--help']] : [name, args];
  const command = await findCommand(commands, word, called);
  if ('commands' in command) {
    const group = {
      called: `${called} ${word}`,
      commands: command.commands,
      help: async () => (await import('./help.ts')).helpOfGroup(`${called} ${word}`, command),
      print,
    };
    return runCommand(group, isAsked ? ['help', ...args.slice(1)] : args);
  }
  if ('exec' in command) command.exec(words);
  else if ('help' in command) await command.run(words);
  else {
    const { operands } = command;
    const commandLine = typeof operands === 'string' ? COMMAND_LINES[operands] : null;
    const parsed = parse(words, optionsOf(command.groups), commandLine);
    if (parsed.values.help) print((await import('./help.ts')).helpOf(`${called} ${word}`, command));
    else await command.run(parsed);
  }
  return true;
}
