import type { Criteria } from '../config/index.ts';
import { usageError } from '../platform/index.ts';
import { advanced, type Option, type OptionGroup, type OptionTable } from './command-line.ts';

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
    throw usageError('--memory and --preemptible contradict each other: a share does not give way');
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
