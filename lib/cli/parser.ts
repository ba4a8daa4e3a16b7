// Reads a command line by tables of options.
import { showValue, usageError } from '../platform/index.ts';
import {
  type AnyValues,
  COMMON_OPTIONS,
  type Option,
  type OptionTable,
  type Parsed,
} from './command-line.ts';
import { unknownOption } from './mistakes.ts';

/**
 * Where a command line of the user's begins, whose words are left alone: at the first word that is no option ('word'), at `--` only
 * ('dashes'), or nowhere.
 */
type CommandLine = 'word' | 'dashes' | null;

/** @throws ERR_INVALID_ARGUMENT, naming what is wrong */
export function parse<Table extends OptionTable>(
  args: readonly string[],
  table: Table,
  commandLine: CommandLine = null,
): Parsed<[{ options: Table }]> {
  const options: OptionTable = { ...COMMON_OPTIONS, ...table };
  const values: MutableValues = {};
  const positionals: string[] = [];
  let at = 0;
  for (; at < args.length; at++) {
    const arg = args[at] ?? '';
    if (arg === '--') break;
    const isOption = arg.startsWith('-') && arg !== '-';
    if (!isOption && commandLine === 'word') break;
    if (!isOption) positionals.push(arg);
    for (const { written, name, option, attached } of isOption ? optionsIn(arg, options) : []) {
      const before = values[name];
      if (option.value === undefined || (option.isValueOptional && attached === undefined)) {
        if (attached !== undefined) throw usageError(`${written} takes no value`);
        // `--wait=10m --wait` waits ten minutes at most.
        values[name] = before ?? true;
        continue;
      }
      if (attached === undefined) at++;
      const value = attached ?? args[at];
      // A negative number is a value, another option is none.
      if (value === undefined || (attached === undefined && /^-(?!\d|$)/.test(value)))
        throw usageError(
          `${written} needs a value${value === undefined ? '' : `, but ${showValue(value)} follows`}; see --help`,
        );
      values[name] = option.isRepeatable ? [...(Array.isArray(before) ? before : []), value] : value;
    }
  }
  const rest = args.slice(args[at] === '--' ? at + 1 : at);
  const command = commandLine === null ? [] : rest;
  if (commandLine === null) positionals.push(...rest);
  return { values: values as Parsed<[{ options: Table }]>['values'], positionals, command, args };
}

type MutableValues = { -readonly [Name in keyof AnyValues]: AnyValues[Name] };

/** The options in one word, and the value of the last: `--name`, `--name=VALUE`, `-nVALUE`, or several letters, as `-fn`. */
function* optionsIn(
  arg: string,
  options: OptionTable,
): Generator<{ written: string; name: string; option: Option; attached: string | undefined }> {
  if (arg.startsWith('--')) {
    const [name = '', ...value] = arg.slice(2).split('=');
    const option = Object.hasOwn(options, name) ? options[name] : undefined;
    if (option === undefined) throw unknownOption(`--${name}`, Object.keys(options));
    yield { written: `--${name}`, name, option, attached: value.length > 0 ? value.join('=') : undefined };
    return;
  }
  for (let i = 1; i < arg.length; i++) {
    const written = `-${arg.charAt(i)}`;
    const [name, option] = Object.entries(options).find(([, { short }]) => short === arg.charAt(i)) ?? [];
    if (name === undefined || option === undefined) throw unknownOption(written, Object.keys(options));
    const takesValue = option.value !== undefined;
    yield { written, name, option, attached: (takesValue && arg.slice(i + 1)) || undefined };
    if (takesValue) return;
  }
}
