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
    if (arg.startsWith('--')) at += readLong(arg, args[at + 1], options, values);
    else if (arg.startsWith('-') && arg !== '-') at += readShort(arg, args[at + 1], options, values);
    else if (commandLine === 'word') break;
    else positionals.push(arg);
  }
  const rest = args.slice(args[at] === '--' ? at + 1 : at);
  const command = commandLine === null ? [] : rest;
  if (commandLine === null) positionals.push(...rest);
  return { values: values as Parsed<[{ options: Table }]>['values'], positionals, command, args };
}

type MutableValues = { -readonly [Name in keyof AnyValues]: AnyValues[Name] };

/** Reads `--name`, `--name=VALUE` or `--name VALUE`. @returns how many following words belong to it */
function readLong(
  arg: string,
  next: string | undefined,
  options: OptionTable,
  values: MutableValues,
): number {
  const equals = arg.indexOf('=');
  const name = equals < 0 ? arg.slice(2) : arg.slice(2, equals);
  const option = Object.hasOwn(options, name) ? options[name] : undefined;
  if (option === undefined) throw unknownOption(`--${name}`, Object.keys(options));
  if (equals >= 0) {
    if (option.value === undefined) throw usageError(`--${name} takes no value`);
    store(values, name, option, arg.slice(equals + 1));
    return 0;
  }
  if (option.value === undefined || option.isValueOptional) {
    // `--wait=10m --wait` waits ten minutes at most.
    if (values[name] === undefined || option.isRepeatable) store(values, name, option, true);
    return 0;
  }
  store(values, name, option, valueAt(next, arg));
  return 1;
}

/** Reads `-n VALUE`, `-nVALUE` or several letters, `-fn VALUE`. @returns how many following words belong to it */
function readShort(
  arg: string,
  next: string | undefined,
  options: OptionTable,
  values: MutableValues,
): number {
  for (let i = 1; i < arg.length; i++) {
    const letter = arg.charAt(i);
    const [name, option] = Object.entries(options).find(([, { short }]) => short === letter) ?? [];
    if (name === undefined || option === undefined) throw unknownOption(`-${letter}`, Object.keys(options));
    if (option.value === undefined) {
      store(values, name, option, true);
      continue;
    }
    const attached = arg.slice(i + 1);
    store(values, name, option, attached === '' ? valueAt(next, `-${letter}`) : attached);
    return attached === '' ? 1 : 0;
  }
  return 0;
}

function store(values: MutableValues, name: string, option: Option, value: string | true): void {
  const before = values[name];
  if (option.isRepeatable && value !== true) values[name] = [...(Array.isArray(before) ? before : []), value];
  else values[name] = value;
}

/** A negative number is a value, another option is none. */
function valueAt(word: string | undefined, option: string): string {
  if (word !== undefined && !/^-(?!\d|$)/.test(word)) return word;
  throw usageError(
    `${option} needs a value${word === undefined ? '' : `, but ${showValue(word)} follows`}; see --help`,
  );
}
