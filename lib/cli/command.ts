import { COMMON_OPTIONS, type OptionGroup, type OptionTable, type Parsed } from './command-line.ts';

/** The words that may follow a command's options. */
export type Operands =
  /** A command line of the user's. */
  | 'command-line'
  /** Files, and after `--` a command line of the user's. */
  | 'files-and-command-line'
  /** Numbers and names of jobs, or of those that wait or run. */
  | 'jobs'
  | 'living-jobs'
  /** Words: the first, and what may follow it, words or files. */
  | { first: readonly string[]; after?: Readonly<Record<string, readonly string[] | 'file'>> };

/** A command as its help and its completion show it. */
export interface DescribedCommand {
  /** The rest of the first line of help, after its name. */
  usage: string;
  /** Paragraphs; those that begin with spaces are shown as they are. */
  about: string;
  groups: readonly OptionGroup[];
  /** Text at the end, as `about`. */
  notes?: string;
  operands?: Operands;
}

/** A command of ours: its arguments are parsed by its description. */
export interface PlainCommand extends DescribedCommand {
  run(parsed: Parsed): Promise<void> | void;
}

/** Commands with a word before their names, as `exp`. */
export interface CommandGroup {
  about: string;
  commands: Commands;
  notes: string;
}

/** Another program, at least for some of its commands; it parses its arguments. */
interface ForeignCommand extends DescribedCommand {
  exec: (args: readonly string[]) => void | Promise<void>;
}

export type Command = PlainCommand | CommandGroup | ForeignCommand;

/** Commands by name in the order of help, loaded when they are called for. */
export type Commands = Readonly<Record<string, CommandEntry>>;

export interface CommandEntry {
  /** A verb phrase for the list of commands. */
  summary: string;
  load: () => Promise<Command>;
}

/** An entry that loads a module when it is called for. @param name of the command in that module */
export function entry<Name extends string = 'COMMAND'>(
  summary: string,
  load: () => Promise<Readonly<Record<NoInfer<Name>, Command>>>,
  name = 'COMMAND' as Name,
): CommandEntry {
  return { summary, load: async () => (await load())[name] };
}

/** Every option that a command parses. */
export function optionsOf(groups: readonly OptionGroup[]): OptionTable {
  return Object.assign({}, ...groups.map(({ options }) => options), COMMON_OPTIONS);
}

const COMMAND_LINES: Readonly<Record<string, 'word' | 'dashes'>> = {
  'command-line': 'word',
  'files-and-command-line': 'dashes',
};

export function commandLineOf({ operands }: DescribedCommand): 'word' | 'dashes' | null {
  return typeof operands === 'string' ? (COMMAND_LINES[operands] ?? null) : null;
}
