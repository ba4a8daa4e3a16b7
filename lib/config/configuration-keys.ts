// The keys of configuration files, each with its check.
import { invalidValue, oneOf, parseAbsolutePath, parseSize, usageError } from '../platform/index.ts';
import { type BookingRules, parseBookings } from './booking-rules.ts';
import { type ConventionChoice, parseConventions } from './convention-choice.ts';
import {
  type Criteria,
  type DeviceRule,
  type NormalizedCriteria,
  normalizeCriteria,
  parseBoolean,
  THRESHOLDS,
  type Threshold,
} from './criteria.ts';
import { type EnforceRules, parseEnforce } from './enforce-rules.ts';
import { type Host, parseHostGroups, parseHosts } from './hosts.ts';
import { type IdleRules, parseIdleRules } from './idle-rules.ts';
import { parseUrgent, type UrgentUsers } from './urgent.ts';
import { type Limits, parseLimits } from './user-limits.ts';
import { type Place, parseTime } from './yaml.ts';

const PLACEHOLDERS = ['auto', 'keep', 'none'] as const;

const VISIBLE_DEVICES = ['uuid', 'index'] as const;

/** The users whose jobs a report names to a user. */
const USAGE_COMMANDS = ['own', 'everybody'] as const;

const ORDERS = ['fair', 'fifo'] as const;

/** A job that uses more than its share of a GPU is warned, or ended after a minute. */
const SHARE_OVERUSES = ['warn', 'end'] as const;

/** How many characters the URL of a webhook may have. */
const MAX_URL_LENGTH = 2_000;

/** The owner of a configuration file. */
export type Kind = 'machine' | 'user';

/** The keys that mean the same in a file and in a {@link Configuration}. A key that isn't set is missing. */
export interface Settings {
  placeholder?: (typeof PLACEHOLDERS)[number];
  visibleDevices?: (typeof VISIBLE_DEVICES)[number];
  /** Names of foreign locking conventions, none for [] */
  conventions?: ConventionChoice;
  /** An absolute path; only a machine's file sets it. */
  lockDirectory?: string;
  /** Milliseconds; only a machine's file sets it. */
  lockTimeout?: number;
  /** How the wait queue is ordered; only a machine's file sets it. Default: fair. */
  order?: (typeof ORDERS)[number];
  /** Limits of the machine's file; {@link Configuration} has the user's own beside them. */
  limits?: Limits;
  /** Only a machine's file sets it. Missing: only root's requests may be urgent. */
  urgent?: UrgentUsers;
  /** Only a machine's file sets it. Missing: jobs that do nothing are left alone. */
  idle?: IdleRules;
  /** Only a machine's file sets it. Missing: only root may book GPUs. */
  bookings?: BookingRules;
  /** Only a machine's file sets it. Missing: `gpu-owner enforce` only tells what it would do. */
  enforce?: EnforceRules;
  /** How long a preemptible command may have to end, in ms; only a machine's file sets it. */
  preemptionGrace?: number;
  /** How long lines of the ledger of usage are kept, in ms, and whose commands users see there; only a machine's file sets them. */
  usageKept?: number;
  usageCommands?: (typeof USAGE_COMMANDS)[number];
  /** Jobs that use more than their share of a GPU are warned, or ended after a minute. */
  shareOveruse?: (typeof SHARE_OVERUSES)[number];
  /** Whether commands are bound to the processors near their GPUs. */
  cpuBind?: boolean;
  /** How many background jobs that have ended are kept, and for how long in ms. */
  jobsKept?: number;
  jobsKeptFor?: number;
  /** How much of the output of one job, and of all, is kept, in bytes. */
  jobLogSize?: number;
  jobLogsSize?: number;
  /** The machines that `--hosts all` asks. */
  hosts?: readonly Host[];
  /** Hosts by the name of their group. */
  hostGroups?: Readonly<Record<string, readonly string[]>>;
}

/** The values of a file. */
export interface Entries extends Settings, Pick<Criteria, Threshold> {
  devices?: readonly DeviceRule[];
  exclude?: readonly DeviceRule[];
  notifyCommand?: readonly string[];
  notifyWebhook?: URL;
}

/** Checks the value of a key, a single one or a list, and returns it as {@link Entries} has it. */
export const CHECKS: Readonly<Record<string, (value: unknown, option: string) => unknown>> = {
  exclude: (value, option) => criterion('exclude', value, option).exclude,
  devices: (value, option) => criterion('devices', value, option).devices,
  ...Object.fromEntries(
    THRESHOLDS.map((key) => [key, (value: unknown, option: string) => criterion(key, value, option)[key]]),
  ),
  placeholder: (value, option) => oneOf(value, PLACEHOLDERS, option),
  visibleDevices: (value, option) => oneOf(value, VISIBLE_DEVICES, option),
  conventions: parseConventions,
  cpuBind: parseBoolean,
  lockDirectory: parseAbsolutePath,
  lockTimeout: parseTime,
  order: (value, option) => oneOf(value, ORDERS, option),
  jobsKept: parseCount,
  jobsKeptFor: parseTime,
  jobLogSize: parseSize,
  jobLogsSize: parseSize,
  hosts: parseHosts,
  preemptionGrace: parseTime,
  shareOveruse: (value, option) => oneOf(value, SHARE_OVERUSES, option),
  usageKept: parseTime,
  usageCommands: (value, option) => oneOf(value, USAGE_COMMANDS, option),
  notifyCommand: parseWords,
  notifyWebhook: parseWebhook,
};

/** Keys whose values have keys and values. */
export const MAPPINGS: Readonly<Record<string, (place: Place, kind: Kind) => unknown>> = {
  limits: (place, kind) => parseLimits(place, kind === 'machine'),
  urgent: parseUrgent,
  bookings: parseBookings,
  hostGroups: parseHostGroups,
  enforce: parseEnforce,
  idle: parseIdleRules,
};

export const MACHINE_ONLY: Record<string, string> = {
  lockDirectory:
    "all users must lock in the same directory, or they don't see each other's leases; a user's file can't change it. Set it in the machine's file, or GPU_OWNER_LOCK_DIR for everybody",
  lockTimeout: "it must be the same for all claims of the machine. Set it in the machine's file",
  shareOveruse: "others need the memory. Set it in the machine's file",
  order: "all users wait in the same queue. Set it in the machine's file",
  preemptionGrace: "others wait for it. Set it in the machine's file",
  enforce: "it is for root's `gpu-owner enforce`. Set it in the machine's file",
  bookings: "nobody permits this to himself. Set it in the machine's file",
  idle: "a user's own jobs have run --idle. Set it in the machine's file",
  usageKept: "all users' leases are in one ledger. Set it in the machine's file",
  usageCommands: "others decide whether you see their commands. Set it in the machine's file",
  urgent: "nobody permits this to himself. Set it in the machine's file",
};

export const USER_ONLY: Record<string, string> = {
  notifyWebhook:
    "its URL is a secret, and everybody reads this one. Set it in ~/.config/gpu-owner/config.yaml; a machine's file may have notifyCommand",
};

function parseCount(value: unknown, option: string): number {
  if (Number.isSafeInteger(value) && Number(value) >= 1) return Number(value);
  throw invalidValue(option, value, 'a number of jobs', 'use 1, 2, …');
}

function parseWords(value: unknown, option: string): string[] {
  const isWord = (word: unknown) => typeof word === 'string' && !word.includes('\0');
  if (Array.isArray(value) && value.every(isWord) && value[0] !== '') return value;
  throw invalidValue(
    option,
    value,
    'valid',
    "use a list of words such as [mail, -s, a job, me@example.com]: no shell reads it. Numbers need quotes: '5'",
  );
}

/** Parses the URL of a webhook. Messages don't show the value, as it is a secret. */
function parseWebhook(value: unknown, option: string): URL {
  const refuse = (why: string) => usageError(`${option}: ${why}`);
  const isText = typeof value === 'string' && value.length <= MAX_URL_LENGTH;
  const url = isText && URL.canParse(value) ? new URL(value) : null;
  if (url === null || !/^https?:$/.test(url.protocol))
    throw refuse('this is not the URL of a webhook; use one such as https://hooks.example.com/…');
  if (url.protocol === 'http:' && !/^(?:localhost|127\.0\.0\.1|\[::1\])$/.test(url.hostname))
    throw refuse(
      'its URL is a secret, and http sends it unencrypted; use https. http is for 127.0.0.1 and localhost only',
    );
  return url;
}

function criterion(key: keyof Criteria, value: unknown, option: string): NormalizedCriteria {
  // An empty list bans nothing, and for `devices` it is a mistake that the check names.
  return normalizeCriteria({ [key]: value }, { names: { [key]: option } });
}
