// The text of `--help`, made from the tables of options.
import { wrapText } from '../platform/index.ts';
import type { CommandGroup, Commands, DescribedCommand } from './command.ts';
import { COMMON_OPTIONS, type Option, type OptionGroup, type OptionTable } from './command-line.ts';

const WIDTH = 80;
const INDENT = '  ';
/** Where the help of options begins. */
const HELP_COLUMN = 28;
const HELP_WITH_ALL = 'print this help; --help --all: with every option';

/** @param called what is typed to start it @param isWhole whether advanced options are shown, too */
export function helpOf(
  called: string,
  { usage, about, groups, notes }: DescribedCommand,
  isWhole: boolean,
): string {
  const shown = groups.map((group) => ({ ...group, options: optionsToShow(group.options, isWhole) }));
  const hasMore = groups.some(({ options }) => Object.values(options).some(({ isAdvanced }) => isAdvanced));
  const help = hasMore ? { ...COMMON_OPTIONS.help, help: HELP_WITH_ALL } : COMMON_OPTIONS.help;
  const [first, ...others] = shown;
  const own = { ...first, options: { ...first?.options, help } };
  const parts = [
    `Usage: ${called} ${usage}`,
    paragraphs(about),
    ...[own, ...others].map(groupHelp),
    ...(notes === undefined ? [] : [paragraphs(notes)]),
  ];
  return parts.join('\n\n');
}

function optionsToShow(options: OptionTable, isWhole: boolean): OptionTable {
  const entries = Object.entries(options).filter(
    ([, { isHidden, isAdvanced }]) => !isHidden && (isWhole || !isAdvanced),
  );
  return Object.fromEntries(entries);
}

/** @param called what is typed before the names of its commands */
export function helpOfGroup(called: string, { about, commands, notes }: CommandGroup): string {
  const parts = [
    `Usage: ${called} COMMAND [OPTIONS]`,
    paragraphs(about),
    `Commands:\n${commandLines(commands)}`,
    paragraphs(notes),
    `Options:\n${Object.entries(COMMON_OPTIONS).map(optionLine).join('\n')}`,
  ];
  return parts.join('\n\n');
}

export function mainHelp(commands: Commands): string {
  return `Usage: gpu-owner COMMAND [OPTIONS]

Exclusive use of NVIDIA GPUs on a shared machine, without a daemon.

Commands:
${commandLines(commands)}

  now: run
  after I log out: submit
  many settings and a table: exp run [--detach]

gpu-owner COMMAND --help explains each. Try it without a GPU:
  gpu-owner run --simulate 4 -n 2 -- env
If you know safe_gpu, gpu_lock, GPU Scheduler or gpu_locks/experiment_manager:
  gpu-owner docs conventions`;
}

/** An option as it is typed, with its value: `-n, --gpus N`. */
function labelOf(name: string, { short, value, isValueOptional }: Option): string {
  const placeholder = value === undefined ? '' : isValueOptional ? `[=${value}]` : ` ${value}`;
  return `${short === undefined ? '' : `-${short}, `}--${name}${placeholder}`;
}

function groupHelp({ title, operands = [], options, notes }: OptionGroup): string {
  return [
    ...(title === undefined ? [] : wrapText(title, WIDTH)),
    ...operands.map(([label, help]) => entry(label, help)),
    ...Object.entries(options).map(optionLine),
    ...(notes === undefined ? [] : [paragraphs(notes)]),
  ].join('\n');
}

function optionLine([name, option]: [string, Option]): string {
  return entry(labelOf(name, option) + (option.isRepeatable ? ' ...' : ''), option.help);
}

function entry(label: string, help: string): string {
  const [first = '', ...more] = wrapText(help, WIDTH - HELP_COLUMN);
  const margin = ' '.repeat(HELP_COLUMN);
  const begin = INDENT + label;
  const head = begin.length < HELP_COLUMN ? begin.padEnd(HELP_COLUMN) + first : `${begin}\n${margin}${first}`;
  return [head, ...more.map((line) => margin + line)].join('\n');
}

function commandLines(commands: Commands): string {
  const width = Math.max(...Object.keys(commands).map((name) => name.length));
  return Object.entries(commands)
    .map(([name, { summary }]) => `${INDENT}${name.padEnd(width)}  ${summary}`)
    .join('\n');
}

/** Breaks lines, except those that begin with spaces. */
function paragraphs(text: string): string {
  return text
    .split('\n')
    .flatMap((line) => (line === '' || line.startsWith(' ') ? [line] : wrapText(line, WIDTH)))
    .join('\n');
}
