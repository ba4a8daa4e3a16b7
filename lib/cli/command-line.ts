import { GPUOwnerError } from '../errors.ts';
import { closest, durationsOf, listWords, sanitize, setVariables, showValue } from '../platform/index.ts';
import { optionFor, remedyForOption } from './foreign-words.ts';

/** Values that a shell offers for an option: some words (others may be right, too), paths, names of simulated machines, or jobs. */
export type Candidates = readonly string[] | 'file' | 'directory' | 'machine' | 'job';

/** An option: the parser, `--help` and completion scripts know it from here alone. */
export interface Option {
  /** A verb phrase in lower case without a full stop, with units and default. Shells show its first clause. */
  help: string;
  short?: string;
  /** How help names the value; missing: the option takes none. */
  value?: string;
  /** The value may be left out, and is attached by '=': `--wait[=DURATION]`. */
  isValueOptional?: boolean;
  isRepeatable?: boolean;
  /** For gpu-owner itself: neither help nor completion shows it. */
  isHidden?: boolean;
  /** Rarely needed: only `--help --all` shows it. */
  isAdvanced?: boolean;
  candidates?: Candidates;
}

/** Options by their names without dashes, in the order of help. */
export type OptionTable = Readonly<Record<string, Option>>;

/** Options that help shows together. */
export interface OptionGroup {
  readonly title?: string;
  /** Operands that are explained among them: what is typed, and its help. */
  readonly operands?: readonly (readonly [label: string, help: string])[];
  readonly options: OptionTable;
  /** Text below them. */
  readonly notes?: string;
}

/** Options of every command. */
export const COMMON_OPTIONS = {
  help: { short: 'h', help: 'print this help' },
} satisfies OptionTable;

/** The same options, which only `--help --all` shows. */
export function advanced<Table extends OptionTable>(table: Table): Table {
  const shown = Object.entries(table).map(([name, option]) => [name, { ...option, isAdvanced: true }]);
  return Object.fromEntries(shown) as Table;
}

/** An option of commands that look at GPUs or at locks. */
export const SIMULATE = {
  simulate: {
    value: 'N|MACHINE|FILE',
    help: "use simulated GPUs instead of the driver's",
    candidates: 'machine',
    isAdvanced: true,
  },
} satisfies OptionTable;

/** `true` for an option without a value; a list where it is repeatable. */
type ValueOf<O> = O extends { isRepeatable: true }
  ? string[]
  : O extends { value: string }
    ? O extends { isValueOptional: true }
      ? string | true
      : string
    : true;

/** The values of options that aren't known by name. */
export type AnyValues = Readonly<Record<string, string | true | string[] | undefined>>;

/** The values of the options of a table. */
export type InferValues<Table> = string extends keyof Table
  ? AnyValues
  : { readonly [Name in keyof Table]?: ValueOf<Table[Name]> };

type AllOf<Union> = (Union extends unknown ? (each: Union) => void : never) extends (all: infer All) => void
  ? All
  : never;

/** Arguments of a command whose options are in these groups. */
export interface Parsed<Groups extends readonly OptionGroup[] = readonly OptionGroup[]> {
  values: InferValues<AllOf<Groups[number]['options']>> & InferValues<typeof COMMON_OPTIONS>;
  positionals: string[];
  /** The user's command line, where the command takes one. */
  command: string[];
  /** All arguments as they were given. */
  args: readonly string[];
}

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
    refuseLongDash(arg);
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

/** Text editors and web pages put other dashes in place of `-` and `--`. @throws ERR_INVALID_ARGUMENT */
export function refuseLongDash(word: string): void {
  const [, dashes = '', rest = ''] = /^([-\u2010-\u2015\u2212\ufe58\ufe63\uff0d]+)(.*)$/s.exec(word) ?? [];
  if (/^-*$/.test(dashes)) return;
  const right = `${/^\w(?:=|$)/.test(rest) ? '-' : '--'}${sanitize(rest, 60)}`;
  throw usage(`${showValue(word)} begins with a long dash, not with hyphens; write ${right}`);
}

/** Has this process and its children use a simulated machine, if the command line names one. @throws ERR_INVALID_ARGUMENT */
export function simulateMachine({ simulate: machine }: AnyValues): void {
  if (typeof machine !== 'string') return;
  // An empty variable of a script must not lead to the real GPUs.
  if (machine === '')
    throw usage(
      '--simulate needs a number of GPUs (4), the name of a machine, or the path of a file that describes one',
    );
  setVariables({ GPU_OWNER_SIMULATE: machine });
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
  if (option === undefined) throw unknown(`--${name}`, options, equals >= 0 ? arg.slice(equals + 1) : next);
  if (equals >= 0) {
    if (option.value === undefined) throw usage(`--${name} takes no value`);
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
    if (name === undefined || option === undefined)
      throw unknown(`-${letter}`, options, arg.slice(i + 1) || next);
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
  throw usage(
    `${option} needs a value${word === undefined ? '' : `, but ${showValue(word)} follows`}; see --help`,
  );
}

/** @param value what follows it, as if it were its value */
function unknown(given: string, options: OptionTable, value = ''): GPUOwnerError {
  const names = Object.keys(options);
  const refuse = (remedy: string) =>
    new UnknownWordError(`there is no option ${sanitize(given, 60)}`, remedy);
  const ours = optionFor(given, names);
  if (ours === 'gpus' && names.includes('devices')) {
    if (/^\d+(?:[,-]\d+)+$/.test(value)) return refuse(`write --devices ${value.slice(0, 60)}`);
    if (given === '--gpu') return refuse('write --gpus N for N GPUs, or --devices LIST to choose them');
  }
  if (ours !== null) return refuse(`write --${ours} ${options[ours]?.value ?? ''}`.trim());
  const remedy = given === '--simulate' || names.includes('placeholder') ? remedyForOption(given) : null;
  if (remedy !== null) return refuse(remedy);
  const meant = given.startsWith('--') ? closest(given.slice(2), names) : null;
  return refuse(meant === null ? 'see --help' : `did you mean --${meant}?`);
}

/** For commands that take options only. @param meant the option that may have been meant by a word */
export function rejectOperands(
  {
    positionals: [word],
    values,
    args,
  }: { positionals: readonly string[]; values: AnyValues; args: readonly string[] },
  meant: (word: string) => string | null = () => null,
): void {
  if (word === undefined) return;
  const option = meant(word) ?? durationAfterWait(values, word) ?? listWithSpaces(args, args.indexOf(word));
  throw usage(
    `${showValue(word)} is not expected here; ${option === null ? 'see --help' : `write ${option}`}`,
  );
}

/** `--listen 8080` for `8080`, `localhost:8080` and `:8080`. */
export function listenOption(word: string): string | null {
  const [, host, port] = /^(?:([\w.-]+|\[[\da-f:]+\])?:)?(\d{1,5})$/i.exec(word) ?? [];
  if (port === undefined) return null;
  return `--listen ${host === undefined ? '' : `${host}:`}${port}`;
}

const LISTS = /^--(?:after|after-ok|devices|exclude|hosts)$/;

/** `--devices 0,1` where that was written with spaces; null: it was not. @param at where the first word is that belongs to no option */
export function listWithSpaces(args: readonly string[], at: number): string | null {
  const [, name = args[at - 2] ?? '', value = args[at - 1] ?? ''] =
    /^(--[\w-]+)=(.*)$/s.exec(args[at - 1] ?? '') ?? [];
  if (!LISTS.test(name)) return null;
  const isItem = (word: string) =>
    name === '--hosts' ? !word.startsWith('-') : /^(?:\d[\d,:-]*|(?:GPU|MIG)-[\w-]+),?$/.test(word);
  const rest = args.slice(at);
  const end = rest.findIndex((word) => !isItem(word));
  const items = [value, ...rest.slice(0, end < 0 ? undefined : end)];
  if (items.length < 2) return null;
  return `${name} ${sanitize(items.join(',').replace(/,+/g, ','), 100)}`;
}

/** The right form of `--wait` or `--watch` where the word after it is its duration, which only `--wait=DURATION` can have; else null. */
export function durationAfterWait(values: AnyValues, word: string): string | null {
  const name = ['wait', 'watch'].find((each) => values[each] === true);
  const [, amount, unit] = /^(\d+(?:\.\d+)?)(ms|s|sec|m|min|h|d)?$/.exec(word) ?? [];
  if (name === undefined || amount === undefined) return null;
  if (unit !== undefined) return `--${name}=${word}`;
  const durations = name === 'wait' ? durationsOf(amount) : [`${amount}s`];
  return listWords(
    durations.map((each) => `--${name}=${each}`),
    'or',
  );
}

/** A mistake in the command line. */
/** A command or an option that this version doesn't have: another one may. */
export class UnknownWordError extends GPUOwnerError {
  /** The message without its remedy. */
  readonly unknown: string;

  constructor(unknown: string, remedy: string) {
    super('ERR_INVALID_ARGUMENT', `${unknown}; ${remedy}`);
    this.unknown = unknown;
  }
}

export function usage(message: string): GPUOwnerError {
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', message);
}
