// What there is to complete, gathered from what the commands parse (their option tables) and say (their help).
import { COMMON, type OptionTable } from '../arguments.ts';
import type { Commands, Operands } from '../command.ts';
import { COMMANDS } from '../commands.ts';
import { MAIN_HELP } from '../help.ts';
import { type Values, valuesOf } from './values.ts';

export interface OptionDescription {
  /** Without its dashes. */
  name: string;
  short: string | null;
  /** Plain text, or empty. */
  summary: string;
  /** May be given more than once. */
  repeatable: boolean;
  /** null: it takes none. 'next': `--name VALUE` or `--name=VALUE`; 'attached': `--name` or `--name=VALUE`. */
  value: { form: 'next' | 'attached'; what: string; values: Values } | null;
}

export interface CommandDescription {
  /** As it is typed: `run`, `exp run`. */
  name: string;
  summary: string;
  options: readonly OptionDescription[];
  operands: Operands | null;
  /** Of a group: its own commands; otherwise none. */
  commands: readonly CommandDescription[];
}

export interface Program {
  commands: readonly CommandDescription[];
}

export async function describe(): Promise<Program> {
  const commands = await describeAll(COMMANDS, '', MAIN_HELP);
  const groups = commands.filter((command) => command.commands.length > 0);
  const after = Object.fromEntries(groups.map((group) => [group.name, group.commands.map(lastWord)]));
  const help: CommandDescription = {
    name: 'help',
    summary: 'explain a command',
    options: [],
    operands: { first: Object.keys(COMMANDS), after },
    commands: [],
  };
  return { commands: [...commands, help] };
}

/** Those of groups stand behind their group. */
export function everyCommand({ commands }: Program): CommandDescription[] {
  return commands.flatMap((command) => [command, ...everyCommand(command)]);
}

/** What is typed for it inside its group. */
export function lastWord({ name }: Pick<CommandDescription, 'name'>): string {
  return name.slice(name.lastIndexOf(' ') + 1);
}

/** @param before what is typed before their names. @param parentHelp has a line for each */
function describeAll(commands: Commands, before: string, parentHelp: string): Promise<CommandDescription[]> {
  const all = Object.entries(commands);
  return Promise.all(all.map(([name, load]) => describeCommand(name, load, before, parentHelp)));
}

async function describeCommand(
  word: string,
  load: Commands[string],
  before: string,
  parentHelp: string,
): Promise<CommandDescription> {
  const command = await load();
  const name = before + word;
  const { help } = command;
  const said = explanations(help);
  const table: OptionTable = { ...command.options, ...COMMON };
  const options: OptionDescription[] = [];
  for (const [option, { type, short = null, multiple = false }] of Object.entries(table)) {
    // What the help doesn't mention is another spelling of what it does mention.
    if (!new RegExp(`(?<![\\w-])--${option}(?![\\w-])`).test(help)) continue;
    const { attached, what, summary } = said.get(option) ?? { attached: false, what: null, summary: '' };
    const form = type === 'string' ? ('next' as const) : attached ? ('attached' as const) : null;
    const value = form === null ? null : { form, what: what ?? 'VALUE', values: valuesOf(option) };
    options.push({ name: option, short, summary, repeatable: multiple, value });
  }
  return {
    name,
    summary: summaryOf(word, parentHelp),
    options,
    operands: command.operands ?? null,
    commands: command.commands ? await describeAll(command.commands, `${name} `, help) : [],
  };
}

const LONGEST = 70;

interface Explanation {
  /** Its value may be left out: `--wait[=DURATION]`. */
  attached: boolean;
  what: string | null;
  summary: string;
}

/** From lines such as `  -n, --gpus N              how many GPUs (default 1)`, and those that go on below them. */
function explanations(help: string): Map<string, Explanation> {
  const found = new Map<string, Explanation>();
  const line =
    /^ {2}(?:-\w, )?--([a-z-]+)(?:( |\[=)([A-Z][A-Za-z|=]*|[a-z]+\|[a-z|]+)\]?(?: \.\.\.)?)?(?: +([^\s-].*(?:\n {20,}.*)*))?$/gm;
  for (const [, name = '', separator, what, text = ''] of help.matchAll(line)) {
    found.set(name, { attached: separator === '[=', what: what ?? null, summary: brief(text) });
  }
  return found;
}

/** The first clause, if it is more than a word or two: what shells show beside a word. */
function brief(text: string): string {
  const whole = text.replace(/\s+/g, ' ').trim();
  const clause = /^.{12,}?(?=; |: | \(|, e\.g\.|$)/.exec(whole)?.[0] ?? whole;
  return clause.length <= LONGEST ? clause : `${clause.slice(0, LONGEST).replace(/ \S*$/, '')} …`;
}

function summaryOf(command: string, help: string): string {
  return new RegExp(`^ {2}${command} +(.*)$`, 'm').exec(help)?.[1] ?? '';
}
