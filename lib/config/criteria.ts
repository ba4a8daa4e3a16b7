import type { GPUOwnerError } from '../errors.ts';
import {
  closest,
  listWords,
  parseCelsius,
  parsePercent,
  parseSize,
  parseWatts,
  sanitize,
  showValue,
  usageError,
} from '../platform/index.ts';

/**
 * Names GPUs: an index of NVML (3 or '3', as in `nvidia-smi`), a range ('0-3'), a UUID or a beginning of one ('GPU-5d2c'), a
 * name or a part of it ('A100'), a pattern ('*RTX 40*'). Several in one text are separated by commas. A MIG instance is named
 * by its GPU's index and its own number ('0:2'), its UUID ('MIG-89c8'), a name ('1g.10gb'). An index or UUID of a GPU names its
 * instances, too.
 */
export type DeviceSelector = number | string;

/** A selector taken apart. `text` is how the user wrote it. */
export type Selector =
  | { kind: 'index'; index: number; text: string }
  | { kind: 'range'; first: number; last: number; text: string }
  | { kind: 'instance'; index: number; instance: number; text: string }
  | { kind: 'uuid'; prefix: string; text: string }
  | { kind: 'name'; pattern: string; text: string };

/**
 * The users' conditions on GPUs. Without any: no compute process is on the GPU (an idle MPS server isn't
 * one), and no more than 100 MiB of its memory are in use beyond what visible graphics processes (a desktop) explain. Where
 * the driver can't tell what a desktop uses, as under WSL 2: no more than 4 GiB, or half of the GPU's memory if that is less.
 */
export interface Criteria {
  /** The least free memory. A text such as '20GiB', or bytes (from 1 MiB on). Default: no condition. */
  minFreeMemory?: number | string | undefined;
  /**
   * So much memory may be in use beyond what graphics processes use; a text, or bytes. Default: see above (with
   * `allowProcesses`: 100 MiB beyond what all visible processes explain). 'any': memory in use doesn't matter; under WSL 2 leases alone decide then.
   */
  maxUsedMemory?: number | string | undefined;
  /** Share the GPU with compute processes that run there without a lease. Default false. */
  allowProcesses?: boolean | undefined;
  /** The most power that it may draw, in watts. Default: no condition. */
  maxPower?: number | string | undefined;
  /** The most time that it may be busy, in percent. Default: no condition. */
  maxUtilization?: number | string | undefined;
  /** The highest temperature that it may have, in degrees Celsius. Default: no condition. */
  maxTemperature?: number | string | undefined;
  /** Accept power, utilization and temperature that the driver can't report, also with a limit. Default false. */
  allowUnknown?: boolean | undefined;
  /** Only these GPUs. Default: all. */
  devices?: DeviceSelector | readonly DeviceSelector[] | undefined;
  /** Not these GPUs. A name that no GPU has excludes none. Default: none. */
  exclude?: DeviceSelector | readonly DeviceSelector[] | undefined;
  /** Skip health, thresholds and processes; never leases, exclusions, bans, and processes on GPUs that admit one only. Default false. */
  force?: boolean | undefined;
}

/** GPUs that a call, a user or a machine restricts a claim to, or bans. `source`: the file that says so; null: the call. */
export interface DeviceRule {
  selectors: readonly Selector[];
  source: string | null;
}

/** Criteria, checked and in plain units. null: no condition. */
export interface NormalizedCriteria {
  minFreeMemory: number | null;
  /** null: the default rule. */
  maxUsedMemory: number | 'any' | null;
  allowProcesses: boolean;
  maxPower: number | null;
  maxUtilization: number | null;
  maxTemperature: number | null;
  allowUnknown: boolean;
  /** A GPU must be in each of these. */
  devices: readonly DeviceRule[];
  exclude: readonly DeviceRule[];
  force: boolean;
  /** The user's names for the options ('--min-free-memory'), for reasons and errors. */
  names: OptionNames;
  /** The criteria of the call alone, without the configuration files; missing: there are none. */
  ofCall?: NormalizedCriteria;
}

export type OptionNames = Readonly<Partial<Record<string, string>>>;

const DEFAULTS: NormalizedCriteria = {
  minFreeMemory: null,
  maxUsedMemory: null,
  allowProcesses: false,
  maxPower: null,
  maxUtilization: null,
  maxTemperature: null,
  allowUnknown: false,
  devices: [],
  exclude: [],
  force: false,
  names: {},
};

type Checks = { [K in keyof Criteria]-?: (value: unknown, option: string) => unknown };

const CHECKS: Checks = {
  minFreeMemory: parseSize,
  maxUsedMemory: (value, option) => (value === 'any' ? 'any' : parseSize(value, option)),
  allowProcesses: parseBoolean,
  maxPower: parseWatts,
  maxUtilization: parsePercent,
  maxTemperature: parseCelsius,
  allowUnknown: parseBoolean,
  devices: parseDevices,
  exclude: (value, option) => deviceRules(parseSelectors(value, option)),
  force: parseBoolean,
};

export const CRITERIA_KEYS = Object.keys(CHECKS) as readonly (keyof Criteria)[];

/** Conditions on a GPU's state, which a configuration file may set; a call's own win. */
export type Threshold = Exclude<keyof Criteria, 'devices' | 'exclude' | 'force'>;

export const THRESHOLDS = CRITERIA_KEYS.filter(
  (key): key is Threshold => !['devices', 'exclude', 'force'].includes(key),
);

export interface NormalizeSettings {
  /** The user's names for the options, by key of {@link Criteria}. */
  names?: OptionNames | undefined;
  /** Other keys that `options` may have and that mean nothing here (`count`, `maxWait`, …). */
  alsoKnown?: readonly string[] | undefined;
}

/**
 * Checks criteria and turns them into plain units. Options that are undefined count as not given.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT, naming the option, the value and what is right.
 */
export function normalizeCriteria(
  options: unknown = {},
  settings: NormalizeSettings = {},
): NormalizedCriteria {
  const { names = {}, alsoKnown = [] } = settings;
  refuseNoObject(options);
  const normalized: Record<string, unknown> = { ...DEFAULTS, names };
  for (const [key, value] of Object.entries(options)) {
    if (alsoKnown.includes(key)) continue;
    if (!Object.hasOwn(CHECKS, key)) throw unknownOption(key, [...CRITERIA_KEYS, ...alsoKnown]);
    if (value === undefined) continue;
    normalized[key] = CHECKS[key as keyof Criteria](value, names[key] ?? key);
  }
  return normalized as unknown as NormalizedCriteria;
}

/** @throws {GPUOwnerError} ERR_INVALID_ARGUMENT */
export function refuseNoObject(options: unknown, otherwise = ''): asserts options is object {
  if (typeof options === 'object' && options !== null && !Array.isArray(options)) return;
  throw usageError(
    `options must be ${otherwise}an object such as { minFreeMemory: '20GiB' }, not ${showValue(options)}`,
  );
}

function unknownOption(key: string, known: readonly string[]): GPUOwnerError {
  const meant = closest(key, known);
  return usageError(
    `there is no option ${showValue(key)}${meant ? `; did you mean '${meant}'?` : `; the known ones are ${listWords(known)}`}`,
  );
}

export function parseBoolean(value: unknown, option: string): boolean {
  if (typeof value === 'boolean') return value;
  throw usageError(`${option}: ${showValue(value)} is neither true nor false`);
}

function parseDevices(value: unknown, option: string): DeviceRule[] {
  const selectors = parseSelectors(value, option);
  if (selectors.length === 0) {
    throw usageError(`${option}: an empty list allows no GPU; leave it out for all`);
  }
  return deviceRules(selectors);
}

function deviceRules(selectors: readonly Selector[]): DeviceRule[] {
  return selectors.length === 0 ? [] : [{ selectors, source: null }];
}

const EXAMPLES =
  "an index (0), a range ('0-3'), a UUID ('GPU-5d2c…'), a MIG instance ('0:2', 'MIG-89c8…') or a name ('A100', '*RTX*')";

/**
 * Takes selectors apart. @param option names the option in errors.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT when one can't name a GPU on any machine.
 */
export function parseSelectors(value: unknown, option: string): Selector[] {
  const values = Array.isArray(value) ? value : [value];
  return values.flatMap((each: unknown) =>
    typeof each === 'string'
      ? each.split(',').map((part) => parseSelector(part.trim(), option, each))
      : [parseSelector(each, option, each)],
  );
}

function parseSelector(value: unknown, option: string, given: unknown): Selector {
  const problem = (what: string) => usageError(`${option}: ${showValue(given)} ${what}; use ${EXAMPLES}`);
  if (typeof value === 'number') {
    if (!Number.isSafeInteger(value) || value < 0) throw problem("isn't a GPU");
    return { kind: 'index', index: value + 0, text: String(value + 0) };
  }
  if (typeof value !== 'string') throw problem("isn't a GPU");
  if (value === '') throw problem(given === '' ? "isn't a GPU" : 'has an empty entry');
  const text = sanitize(value, 100);
  if (/^-?\d+$/.test(value)) {
    const index = Number(value);
    if (!Number.isSafeInteger(index) || index < 0) throw problem("isn't the index of a GPU");
    return { kind: 'index', index, text };
  }
  const range = /^(\d{1,9})\s*-\s*(\d{1,9})$/.exec(value);
  if (range) {
    const [first, last] = [Number(range[1]), Number(range[2])];
    if (first > last) throw problem(`runs backwards (${last}-${first}?)`);
    return { kind: 'range', first, last, text };
  }
  const instance = /^(\d{1,9})\s*:\s*(\d{1,9})$/.exec(value);
  if (instance) return { kind: 'instance', index: Number(instance[1]), instance: Number(instance[2]), text };
  // As GPUs of a Jetson have it.
  if (/^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(value))
    return { kind: 'uuid', prefix: value.toLowerCase(), text };
  if (/^GPU-/i.test(value)) {
    if (!/^GPU-[0-9a-f][0-9a-f-]{0,35}$/i.test(value)) throw problem("isn't a UUID of a GPU");
    return { kind: 'uuid', prefix: value.toLowerCase(), text };
  }
  if (/^MIG-/i.test(value)) {
    // The second form is that of drivers before R470.
    if (!/^MIG-([0-9a-f][0-9a-f-]{0,35}|GPU-[0-9a-f-]{1,36}(\/\d+){0,2})$/i.test(value))
      throw problem("isn't a UUID of a MIG instance");
    return { kind: 'uuid', prefix: value.toLowerCase(), text };
  }
  if (value.length > 100 || text !== value) throw problem("isn't the name of a GPU");
  return { kind: 'name', pattern: value, text };
}
