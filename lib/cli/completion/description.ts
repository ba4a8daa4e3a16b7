// The words to complete, from the tables that the commands are parsed by.
import { type Command, type CommandEntry, type Commands, type Operands, optionsOf } from '../command.ts';
import type { Candidates, Option, OptionTable } from '../options.ts';

export interface OptionDescription extends Option {
  /** Without its dashes. */
  name: string;
  /** The beginning of its help. */
  summary: string;
  /** null: it takes no value. 'next': `--name VALUE` or `--name=VALUE`; 'attached': `--name` or `--name=VALUE`. */
  form: 'next' | 'attached' | null;
  /** Values to offer; null: nothing is known. */
  offers: Exclude<Candidates, 'machine'> | null;
}

export interface CommandDescription {
  /** As it is typed: `run`, `exp run`. */
  name: string;
  summary: string;
  options: readonly OptionDescription[];
  operands: Operands | null;
  /** The commands of a group; otherwise none. */
  commands: readonly CommandDescription[];
}

export interface ProgramDescription {
  commands: readonly CommandDescription[];
}

/** @param machines names of simulated machines */
export async function describe(all: Commands, machines: readonly string[]): Promise<ProgramDescription> {
  const commands = await describeAll(all, '', machines);
  const groups = commands.filter((command) => command.commands.length > 0);
  const after = Object.fromEntries(groups.map((group) => [group.name, group.commands.map(lastWord)]));
  const help: CommandDescription = {
    name: 'help',
    summary: 'explain a command',
    options: [],
    operands: { first: Object.keys(all), after },
    commands: [],
  };
  return { commands: [...commands, help] };
}

/** All commands; those of a group stand behind it. */
export function everyCommand({ commands }: ProgramDescription): CommandDescription[] {
  return commands.flatMap((command) => [command, ...everyCommand(command)]);
}

/** The command's name inside its group. */
export function lastWord({ name }: Pick<CommandDescription, 'name'>): string {
  return name.slice(name.lastIndexOf(' ') + 1);
}

function describeAll(
  commands: Commands,
  before: string,
  machines: readonly string[],
): Promise<CommandDescription[]> {
  const all = Object.entries(commands);
  return Promise.all(all.map(([word, entry]) => describeCommand(before + word, entry, machines)));
}

async function describeCommand(
  name: string,
  { summary, load }: CommandEntry,
  machines: readonly string[],
): Promise<CommandDescription> {
  const command = await load();
  const isGroup = 'commands' in command;
  const { options, operands = null } = parsedBy(command);
  return {
    name,
    summary,
    options: Object.entries(options)
      .filter(([, { isHidden }]) => !isHidden)
      .map(([option, about]) => describeOption(option, about, machines)),
    operands,
    commands: isGroup ? await describeAll(command.commands, `${name} `, machines) : [],
  };
}

function parsedBy(command: Command): { options: OptionTable; operands?: Operands } {
  if ('commands' in command) return { options: optionsOf([]) };
  const { groups, operands } = command;
  return { options: optionsOf(groups), ...(operands === undefined ? {} : { operands }) };
}

function describeOption(name: string, option: Option, machines: readonly string[]): OptionDescription {
  const { help, value, isValueOptional, candidates = null } = option;
  return {
    ...option,
    name,
    summary: brief(help),
    form: value === undefined ? null : isValueOptional ? 'attached' : 'next',
    offers: candidates === 'machine' ? ['1', '2', '4', '8', ...machines] : candidates,
  };
}

const MAX_SUMMARY = 70;

/** The first clause, if it is more than a word or two: what shells show beside a word. */
function brief(help: string): string {
  const clause = /^.{12,}?(?=; |: | \(|, e\.g\.|$)/.exec(help)?.[0] ?? help;
  return clause.length <= MAX_SUMMARY ? clause : `${clause.slice(0, MAX_SUMMARY).replace(/ \S*$/, '')} …`;
}
