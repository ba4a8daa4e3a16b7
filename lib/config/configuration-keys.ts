// The keys of configuration files, each with its check.
import {
  invalidArgument,
  invalidValue,
  oneOf,
  parseAbsolutePath,
  parseDuration,
  parseSize,
} from '../platform/index.ts';
import { parseConventions } from './convention-choice.ts';
import { type Criteria, type NormalizedCriteria, normalizeCriteria, THRESHOLDS } from './criteria.ts';
import { parseHosts } from './hosts.ts';

export const PLACEHOLDERS = ['auto', 'keep', 'none'] as const;

export const VISIBLE_DEVICES = ['uuid', 'index'] as const;

/** The users whose jobs a report names to a user. */
export const USAGE_COMMANDS = ['own', 'everybody'] as const;

export const ORDERS = ['fair', 'fifo'] as const;

/** A job that uses more than its share of a GPU is warned, or ended after a minute. */
export const SHARE_OVERUSES = ['warn', 'end'] as const;

/** How many characters the URL of a webhook may have. */
const MAX_URL_LENGTH = 2_000;

/** The owner of a configuration file. */
export type Kind = 'machine' | 'user';

export type Entries = Partial<Record<string, unknown>>;

/** Checks a key's value, and returns it as {@link Configuration} or {@link Criteria} has it. */
export const CHECKS: Record<string, (value: unknown, option: string) => unknown> = {
  exclude: (value, option) => criterion('exclude', value, option).exclude,
  excludeNames: (value, option) => criterion('excludeNames', value, option).excludeNames,
  devices: (value, option) => criterion('devices', value, option).devices,
  ...Object.fromEntries(
    THRESHOLDS.map((key) => [key, (value: unknown, option: string) => criterion(key, value, option)[key]]),
  ),
  placeholder: (value, option) => oneOf(value, PLACEHOLDERS, option),
  visibleDevices: (value, option) => oneOf(value, VISIBLE_DEVICES, option),
  conventions: parseConventions,
  lockDirectory: parseAbsolutePath,
  lockTimeout: durationOf,
  order: (value, option) => oneOf(value, ORDERS, option),
  jobsKept: parseCount,
  jobsKeptFor: durationOf,
  jobLogSize: parseSize,
  jobLogsSize: parseSize,
  hosts: parseHosts,
  preemptionGrace: durationOf,
  limits: (value) => value,
  urgent: (value) => value,
  bookings: (value) => value,
  idle: (value) => value,
  shareOveruse: (value, option) => oneOf(value, SHARE_OVERUSES, option),
  usageKept: durationOf,
  usageCommands: (value, option) => oneOf(value, USAGE_COMMANDS, option),
  enforce: (value) => value,
  notifyCommand: parseWords,
  notifyWebhook: parseWebhook,
};

/** Only programs count milliseconds: a number in a file has lost its unit. */
function durationOf(value: unknown, option: string): number {
  return parseDuration(typeof value === 'number' ? String(value) : value, option);
}

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
  const refuse = (why: string) => invalidArgument(`${option}: ${why}`);
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
