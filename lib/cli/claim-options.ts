import type { ClaimOptions } from '../claims/index.ts';
import type { Criteria } from '../config/index.ts';
import {
  type AnyValues,
  advanced,
  type InferValues,
  type Option,
  type OptionGroup,
  type OptionTable,
  usage,
} from './command-line.ts';

export const COUNTS = ['1', '2', '4', '8'];
export const SIZES = ['4GiB', '8GiB', '16GiB', '24GiB', '40GiB', '80GiB'];
export const DURATIONS = ['30s', '10m', '1h', '8h'];

/** `minFreeMemory` as an option: `min-free-memory`. */
type Kebab<Name extends string> = Name extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `-${Lowercase<First>}`}${Kebab<Rest>}`
  : Name;

/** Conditions for GPUs, named as in the API. */
export const CRITERIA = {
  'min-free-memory': { value: 'SIZE', help: 'require SIZE of free memory, e.g. 20GiB', candidates: SIZES },
  'max-used-memory': {
    value: 'SIZE',
    help: 'accept at most SIZE of used memory (any: no limit)',
    candidates: ['any', ...SIZES],
  },
  'allow-processes': { help: 'accept compute processes that run without a claim' },
  'max-power': { value: 'WATTS', help: 'accept at most this power draw', isAdvanced: true },
  'max-utilization': { value: 'PERCENT', help: 'accept at most this utilization', isAdvanced: true },
  'max-temperature': { value: 'CELSIUS', help: 'accept at most this temperature', isAdvanced: true },
  'allow-unknown': {
    help: "accept power, utilization and temperature that the driver can't tell",
    isAdvanced: true,
  },
  devices: {
    value: 'LIST',
    isRepeatable: true,
    help: 'use only these GPUs: indices, ranges, UUIDs, names (0,2-3); MIG instances as 0:2',
  },
  exclude: { value: 'LIST', isRepeatable: true, help: 'never use these GPUs, or models of this name' },
  force: { help: 'accept GPUs that are unhealthy or in use, unless they are leased' },
} satisfies Readonly<Record<Kebab<keyof Criteria>, Option>>;

export const CRITERIA_GROUP = {
  title:
    'Which GPUs are accepted (default: no compute process, and at most 100 MiB of memory in use beyond that of visible graphics processes):',
  options: CRITERIA,
} satisfies OptionGroup;

/** The criteria of sweeps, which have more everyday options of their own. The configuration has all. */
export const WORKER_CRITERIA_GROUP = {
  title: CRITERIA_GROUP.title,
  options: {
    'min-free-memory': CRITERIA['min-free-memory'],
    devices: CRITERIA.devices,
    ...advanced({
      'max-used-memory': CRITERIA['max-used-memory'],
      'allow-processes': CRITERIA['allow-processes'],
      exclude: CRITERIA.exclude,
      force: CRITERIA.force,
    }),
  },
} satisfies OptionGroup;

/** @param verb what the command does with them */
export function countOption(verb: string) {
  return {
    gpus: { short: 'n', value: 'N', help: `${verb} N GPUs (default 1)`, candidates: COUNTS },
  } satisfies OptionTable;
}

export const MEMORY = {
  memory: {
    value: 'SIZE|PERCENT',
    help: 'share: claim only this much memory of each GPU (20GiB, 25%); others may use the rest',
    candidates: [...SIZES, '25%', '50%'],
  },
} satisfies OptionTable;

export const TOGETHER = {
  together: { help: 'accept only GPUs that are connected with each other, by NVLink or one PCIe switch' },
} satisfies OptionTable;

/** @throws ERR_INVALID_ARGUMENT */
export function refusePreemptibleShare({
  memory,
  preemptible,
}: {
  memory?: string | undefined;
  preemptible?: true | undefined;
}): void {
  if (memory !== undefined && preemptible)
    throw usage('--memory and --preemptible contradict each other: a share does not give way');
}

/** For commands that wait only if they are told to. */
export const WAIT = {
  wait: {
    value: 'DURATION',
    isValueOptional: true,
    help: 'wait until enough GPUs are free, for DURATION at most (30s, 10m, 2h); default: exit with 75',
    candidates: DURATIONS,
  },
} satisfies OptionTable;

/** For commands that wait unless they are told not to. */
export const WAIT_BY_DEFAULT = {
  wait: {
    ...WAIT.wait,
    help: 'wait until enough GPUs are free (default), for DURATION at most (30s, 10m, 2h)',
  },
  'no-wait': { help: 'exit with 75 if not enough GPUs are free' },
} satisfies OptionTable;

export const VISIBLE_DEVICES = {
  'visible-devices': {
    value: 'FORM',
    help: 'name the GPUs by uuid (default), or by index for old software',
    candidates: ['uuid', 'index'],
    isAdvanced: true,
  },
} satisfies OptionTable;

export const URGENT = {
  urgent: { help: 'go to the front of the queue (only users listed in the configuration)' },
} satisfies OptionTable;

export function placeholderOption(help: string) {
  return {
    placeholder: { value: 'MODE', help, candidates: ['auto', 'keep', 'none'], isAdvanced: true },
  } satisfies OptionTable;
}

/** Options of the API by what they are called here. */
const KEYS: Readonly<Record<string, string>> = {
  ...Object.fromEntries(
    [
      'memory',
      'together',
      'urgent',
      'placeholder',
      'visible-devices',
      'lock-timeout',
      ...Object.keys(CRITERIA),
    ].map((name) => [name, camelCase(name)]),
  ),
  gpus: 'count',
};

/** The options of the API as users of the command know them, for messages. */
export const NAMES: Readonly<Record<string, string>> = {
  ...Object.fromEntries(Object.entries(KEYS).map(([name, key]) => [key, `--${name}`])),
  count: '-n',
};

/** The options of the API that the command line gives. The API checks their values. */
export function claimOptions(values: AnyValues): ClaimOptions {
  const options: Record<string, unknown> = {};
  for (const [name, key] of Object.entries(KEYS)) {
    const value = values[name];
    if (name === 'gpus') refuseList(value);
    if (value !== undefined) options[key] = name === 'gpus' ? numberIfOne(value) : value;
  }
  return options;
}

/** Indices are meant where a list is: other tools have them here. @throws ERR_INVALID_ARGUMENT */
function refuseList(gpus: AnyValues[string]): void {
  if (typeof gpus !== 'string' || !/^\d+(?:[,-]\d+)+$/.test(gpus)) return;
  throw usage(
    `-n: '${gpus.slice(0, 60)}' is not a number of GPUs; use 1, 2, …, or, to choose among these, --devices ${gpus.slice(0, 60)}`,
  );
}

/** How long to wait: null = not at all. @param byDefault whether to wait if nothing is said */
export function waitOption(
  values: InferValues<typeof WAIT_BY_DEFAULT>,
  byDefault: boolean,
): { maxWait: string | null } | null {
  const limit = typeof values.wait === 'string' ? values.wait : undefined;
  if (values['no-wait'] && values.wait) throw usage('--wait and --no-wait contradict each other');
  if (limit !== undefined) return { maxWait: limit };
  if (values['no-wait']) return null;
  return values.wait || byDefault ? { maxWait: null } : null;
}

/** Without a regular expression: V8 would compile that at each start, for half a millisecond. */
function camelCase(name: string): string {
  const [first = '', ...others] = name.split('-');
  return first + others.map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join('');
}

/** Left as text where it isn't a number, so that the error can show what was typed. */
function numberIfOne(value: unknown): unknown {
  return typeof value === 'string' && /^-?\d{1,9}(\.\d{1,9})?$/.test(value) ? Number(value) : value;
}
