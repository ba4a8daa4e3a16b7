// The words that shells complete: `__complete` is asked by the scripts of `completion`.
import { ifFailed } from '../errors.ts';
import { type Command, type Commands, commandLineOf, type DescribedCommand, optionsOf } from './command.ts';
import { COMMON_OPTIONS, type Option, type OptionTable } from './command-line.ts';
import { print } from './output.ts';
import { brief, type Offer, offeredJobs, offerValues, offerWords, plain } from './proposed-values.ts';

/** The command that proposes words for the last of its arguments, which are those of gpu-owner. Nothing in it is an error. */
export function completeOf(commands: Commands): Command {
  return {
    usage: 'SHELL -- WORDS',
    about: 'Proposes words for the last word of a command line.',
    groups: [{ options: {} }],
    exec: async ([shell, , ...words]) => {
      const line = shell === 'bash' ? joinedAtEquals(words) : words.map((word, i) => ({ word, at: i + 1 }));
      const offer = await offerFor(commands, line).catch(ifFailed(null));
      if (offer === null) return;
      const current = line.at(-1)?.word ?? '';
      const offered =
        shell === 'bash' ? offer.words.filter(([word]) => word.startsWith(current)) : offer.words;
      const isOpen = offered.length > 0 && offered.every(([word]) => word.endsWith('='));
      const action = offer.action === 'words' && isOpen ? 'open' : offer.action;
      const lines = offered.map(([word, summary]) => (summary === '' ? word : `${word}\t${summary}`));
      print([`${action} ${offer.at ?? current}`, ...lines].join('\n'));
    },
  };
}

/** A word of the command line, and its position there for the shell. */
interface Word {
  word: string;
  at: number;
}

/** Bash splits words at '='; these are put together again. */
function joinedAtEquals(words: readonly string[]): Word[] {
  const joined: Word[] = [];
  for (const [i, word] of words.entries()) {
    const last = joined.at(-1);
    if (last !== undefined && (word.startsWith('=') || words[i - 1] === '=')) last.word += word;
    else joined.push({ word, at: i + 1 });
  }
  return joined;
}

const named = (commands: Commands) =>
  Object.entries(commands).map(([name, { summary }]) => [name, summary] as const);

async function offerFor(commands: Commands, line: readonly Word[], isInGroup = false): Promise<Offer> {
  const [name = '', ...others] = line.map(({ word }) => word);
  if (others.length === 0) {
    const flags = isInGroup ? optionWords(COMMON_OPTIONS) : plain(['--help', '--version']);
    const help = isInGroup ? [] : [['help', 'explain a command'] as const];
    return offerWords(name.startsWith('-') ? flags : [...named(commands), ...help]);
  }
  if (name === 'help' && !isInGroup) return offerHelp(commands, others.slice(0, -1));
  if (!Object.hasOwn(commands, name)) return offerWords([]);
  const command = (await commands[name]?.load()) as Command;
  if ('commands' in command) return offerFor(command.commands, line.slice(1), true);
  return offerForCommand(command, line.slice(1));
}

async function offerHelp(commands: Commands, [name, ...more]: readonly string[]): Promise<Offer> {
  if (name === undefined) return offerWords(named(commands));
  const command = Object.hasOwn(commands, name) ? await commands[name]?.load() : undefined;
  return command !== undefined && 'commands' in command ? offerHelp(command.commands, more) : offerWords([]);
}

async function offerForCommand(command: DescribedCommand, line: readonly Word[]): Promise<Offer> {
  const options = optionsOf(command.groups);
  const commandLine = commandLineOf(command);
  const current = line.at(-1)?.word ?? '';
  let operand: string | null = null;
  let hasEnded = false;
  let i = 0;
  for (; i < line.length - 1; i++) {
    const word = line[i]?.word ?? '';
    if (hasEnded || word === '-' || !word.startsWith('-')) {
      if (commandLine === 'word' || (commandLine === 'dashes' && hasEnded)) break;
      operand ??= word;
    } else if (word === '--') hasEnded = true;
    else {
      const option = optionOf(options, word);
      if (option?.value === undefined || option.isValueOptional) continue;
      if (++i === line.length - 1) return offerValues(option, '');
    }
  }
  const isCommand = hasEnded || (commandLine === 'word' && (i < line.length - 1 || !current.startsWith('-')));
  if (commandLine !== null && isCommand) return { action: 'command', words: [], at: line[i]?.at ?? 0 };
  if (!hasEnded && /^--[^=]+=/.test(current)) {
    const spelling = current.slice(0, current.indexOf('='));
    return offerValues(optionOf(options, spelling), `${spelling}=`);
  }
  if (!hasEnded && current.startsWith('-')) return offerWords(optionWords(options));
  const { operands } = command;
  if (operands === 'files-and-command-line') return { action: 'file', words: [] };
  if (operands === 'jobs' || operands === 'living-jobs')
    return offerWords(await offeredJobs(operands === 'jobs'));
  if (typeof operands === 'object') {
    const { first, after = {} } = operands;
    const next = operand === null ? first : Object.hasOwn(after, operand) ? after[operand] : undefined;
    if (next === 'file') return { action: 'file', words: [] };
    if (next !== undefined) return offerWords(plain(next));
  }
  return offerWords(current === '' && !hasEnded ? optionWords(options) : []);
}

function optionOf(options: OptionTable, word: string): Option | undefined {
  const name = word.slice(2);
  if (word.startsWith('--')) return Object.hasOwn(options, name) ? options[name] : undefined;
  return Object.values(options).find(({ short }) => short !== undefined && word === `-${short}`);
}

function optionWords(options: OptionTable): Offer['words'] {
  return Object.entries(options).flatMap(([name, { short, help, isValueOptional, isHidden }]) => {
    if (isHidden) return [];
    const spellings = [
      `--${name}`,
      ...(short === undefined ? [] : [`-${short}`]),
      ...(isValueOptional ? [`--${name}=`] : []),
    ];
    return spellings.map((spelling) => [spelling, brief(help)] as const);
  });
}
