import type { ParseArgsConfig } from 'node:util';
import type { ClaimOptions } from '../claims/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { closest, sanitize, showValue } from '../platform/index.ts';

export type OptionTable = NonNullable<ParseArgsConfig['options']>;

/** Options that every command has. */
export const COMMON = {
  help: { type: 'boolean', short: 'h' },
  simulate: { type: 'string' },
} as const satisfies OptionTable;

/** Options that say which GPUs will do, named as in the API. */
export const CRITERIA = {
  'min-free-memory': { type: 'string' },
  'max-used-memory': { type: 'string' },
  'allow-processes': { type: 'boolean' },
  'max-power': { type: 'string' },
  'max-utilization': { type: 'string' },
  'max-temperature': { type: 'string' },
  devices: { type: 'string', multiple: true },
  exclude: { type: 'string', multiple: true },
  'exclude-names': { type: 'string', multiple: true },
  force: { type: 'boolean' },
  'lock-dir': { type: 'string' },
  conventions: { type: 'string' },
} as const satisfies OptionTable;

/** Options of commands that claim. */
export const CLAIM = {
  ...CRITERIA,
  gpus: { type: 'string', short: 'n' },
  placeholder: { type: 'string' },
  'visible-devices': { type: 'string' },
  'lock-timeout': { type: 'string' },
} as const satisfies OptionTable;

/** Options of commands that can wait. `--wait=DURATION` is read as `--max-wait DURATION`. */
export const WAITING = {
  wait: { type: 'boolean' },
  'no-wait': { type: 'boolean' },
  'max-wait': { type: 'string' },
} as const satisfies OptionTable;

export type Values = Record<string, string | boolean | (string | boolean)[] | undefined>;

export interface Parsed {
  values: Values;
  positionals: string[];
  /** If the command takes a command: what stands behind `--`, or from the first word on that is no option. */
  command: string[];
}

function usage(message: string): GPUOwnerError {
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', message);
}

/**
 * @param takesCommand the arguments end with a command line of the user's, which is left alone; 'behind-dashes': words may stand
 *   before it, so that only `--` begins it
 * @throws ERR_INVALID_ARGUMENT, naming what is wrong
 */
export function parse(
  args: readonly string[],
  table: OptionTable,
  takesCommand: boolean | 'behind-dashes' = false,
): Parsed {
  const options = { ...COMMON, ...table };
  const split = takesCommand ? commandStart(args, options, takesCommand === true) : args.length;
  const own = args
    .slice(0, split)
    .map((arg) => (arg.startsWith('--wait=') ? `--max-wait=${arg.slice(7)}` : arg));
  const command = args.slice(args[split] === '--' ? split + 1 : split);
  const joined = withValues(own, options);
  let parsed: { values: object; positionals: string[] } | null = parsePlain(joined, options);
  try {
    parsed ??= process.getBuiltinModule('node:util').parseArgs({
      args: joined,
      options,
      allowPositionals: takesCommand !== true,
      strict: true,
    });
  } catch (error) {
    throw explained(error as NodeJS.ErrnoException, own, options);
  }
  const values = parsed.values as Values;
  if (typeof values.simulate === 'string') {
    // An empty variable of a script must not lead to the real GPUs.
    if (values.simulate === '') throw usage('--simulate needs a number of GPUs (4) or the name of a machine');
    process.env.GPU_OWNER_SIMULATE = values.simulate;
  }
  return { values, positionals: parsed.positionals, command };
}

function commandStart(args: readonly string[], options: OptionTable, byWord: boolean): number {
  for (let i = 0; i < args.length; i++) {
    const arg = args[i] as string;
    if (arg === '--' || (byWord && (!arg.startsWith('-') || arg === '-'))) return i;
    if (optionWithValue(arg, options) !== null) i++;
  }
  return args.length;
}

/** The name of the option to which the next word belongs as its value, or null. */
function optionWithValue(arg: string, options: OptionTable): string | null {
  const name = arg.startsWith('--')
    ? arg.slice(2)
    : Object.keys(options).find((each) => arg.length === 2 && options[each]?.short === arg[1]);
  return name !== undefined && Object.hasOwn(options, name) && options[name]?.type === 'string' ? name : null;
}

/** Joins options with their values, so that '-1' is one; `parseArgs` would call it ambiguous. */
function withValues(args: readonly string[], options: OptionTable): string[] {
  const joined: string[] = [];
  for (let i = 0; i < args.length; i++) {
    const arg = args[i] as string;
    if (arg === '--') return [...joined, ...args.slice(i)];
    const name = optionWithValue(arg, options);
    if (name === null) {
      joined.push(arg);
      continue;
    }
    const value = args[++i];
    if (value === undefined || /^-(?!\d|$)/.test(value)) {
      throw usage(
        `${arg} needs a value${value === undefined ? '' : `, but ${showValue(value)} follows`}; see --help`,
      );
    }
    joined.push(`--${name}=${value}`);
  }
  return joined;
}

/**
 * Where every word is a long option as its table has it; null: `parseArgs` is to see to the rest. Its first call costs the start
 * of the command most of a millisecond.
 */
function parsePlain(words: readonly string[], options: OptionTable): Omit<Parsed, 'command'> | null {
  const values: Values = {};
  for (const word of words) {
    if (!word.startsWith('--')) return null;
    const equals = word.indexOf('=');
    const name = equals < 0 ? word.slice(2) : word.slice(2, equals);
    const option = Object.hasOwn(options, name) ? options[name] : undefined;
    if (option === undefined || (option.type === 'string') !== equals > 0) return null;
    const value = equals < 0 ? true : word.slice(equals + 1);
    if (option.multiple) values[name] = [...((values[name] as string[]) ?? []), value];
    else values[name] = value;
  }
  return { values, positionals: [] };
}

function explained(
  error: NodeJS.ErrnoException,
  args: readonly string[],
  options: OptionTable,
): GPUOwnerError {
  const names = Object.keys(options);
  if (error.code === 'ERR_PARSE_ARGS_UNKNOWN_OPTION') {
    const given =
      args.map((arg) => arg.split('=')[0] as string).find((arg) => isUnknown(arg, options)) ?? '?';
    const meant = given.startsWith('--') ? closest(given.slice(2), names) : null;
    return usage(
      `there is no option ${sanitize(given, 60)}${meant ? `; did you mean --${meant}?` : '; see --help'}`,
    );
  }
  return usage(sanitize(error.message.split('\n')[0]?.replace(/\.$/, '')) || 'bad arguments');
}

function isUnknown(arg: string, options: OptionTable): boolean {
  if (arg.startsWith('--')) return arg.length > 2 && !Object.hasOwn(options, arg.slice(2));
  return /^-[^-]/.test(arg) && !Object.values(options).some(({ short }) => short === arg[1]);
}

/** What users call the options of the API, for messages. */
export const NAMES: Record<string, string> = {
  ...Object.fromEntries(Object.keys(CLAIM).map((name) => [camelCase(name), `--${name}`])),
  count: '-n',
  lockDirectory: '--lock-dir',
};

/** Options of the command line as the API has them. Their values are checked there. */
export function claimOptions(values: Values): ClaimOptions {
  const options: Record<string, unknown> = {};
  for (const name of Object.keys(CLAIM)) {
    const value = values[name];
    if (value === undefined) continue;
    if (name === 'gpus') options.count = numberIfOne(value);
    else if (name === 'lock-dir') options.lockDirectory = value;
    else options[camelCase(name)] = value;
  }
  return options;
}

/** How long to wait: null = not at all. @param byDefault whether to wait if nothing is said */
export function waitOption(values: Values, byDefault: boolean): { maxWait: string | null } | null {
  const limit = values['max-wait'];
  if (values['no-wait'] && (values.wait || limit !== undefined))
    throw usage('--wait and --no-wait contradict each other');
  if (typeof limit === 'string') return { maxWait: limit };
  if (values['no-wait']) return null;
  return values.wait || byDefault ? { maxWait: null } : null;
}

/** Whether the word behind `--wait` is its duration, which only `--wait=DURATION` can have. */
export function isLostDuration(values: Values, word: string): boolean {
  return values.wait === true && /^\d+(ms|s|m|h|d)$/.test(word);
}

/** For commands that take options only. */
export function refuseWords([word]: readonly string[], values: Values = {}): void {
  if (word === undefined) return;
  const remedy = isLostDuration(values, word) ? `write --wait=${word}` : 'see --help';
  throw usage(`${showValue(word)} is not expected here; ${remedy}`);
}

function camelCase(name: string): string {
  return name.replace(/-(.)/g, (_, letter: string) => letter.toUpperCase());
}

/** Left as text where it isn't a number, so that the error can show what was typed. */
function numberIfOne(value: unknown): unknown {
  return typeof value === 'string' && /^-?\d{1,9}(\.\d{1,9})?$/.test(value) ? Number(value) : value;
}
