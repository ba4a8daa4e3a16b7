// The configuration of machine and user, as claims use it.
import { sanitize } from '../platform/index.ts';
import type { BookingRules } from './bookings.ts';
import { loadFile, loadFiles, MACHINE_FILE } from './configuration-file.ts';
import type {
  Entries,
  ORDERS,
  PLACEHOLDERS,
  SHARE_OVERUSES,
  USAGE_COMMANDS,
  VISIBLE_DEVICES,
} from './configuration-keys.ts';
import type { ConventionChoice } from './convention-choice.ts';
import {
  type Criteria,
  type DeviceRule,
  type NameRule,
  type NormalizedCriteria,
  type NormalizeSettings,
  normalizeCriteria,
  THRESHOLDS,
  type Threshold,
} from './criteria.ts';
import type { EnforceRules } from './enforce.ts';
import type { Host } from './hosts.ts';
import type { IdleRules } from './idle.ts';
import type { Limits } from './limits.ts';
import { simulatedMachine } from './simulation.ts';
import type { UrgentUsers } from './urgent.ts';

const SETTINGS = [
  ...['placeholder', 'visibleDevices', 'conventions', 'lockDirectory', 'lockTimeout', 'order', 'hosts'],
  ...['preemptionGrace', 'usageKept'],
];

/** Keys for background jobs. */
const JOB_KEYS = ['jobsKept', 'jobsKeptFor', 'jobLogSize', 'jobLogsSize'];

/** Keys that hold back GPUs. No option lifts those of the machine's own file. */
const BANS = [
  ...(['devices', 'exclude', 'excludeNames', 'limits', 'urgent', 'bookings'] as const),
  ...(['enforce', 'usageCommands', 'idle', 'shareOveruse'] as const),
] as const;

/** The configuration files of machine and user together. A key that no file sets is missing. */
export interface Configuration {
  /** The files that were read. */
  files: readonly string[];
  /** The user's over the machine's. */
  thresholds: Pick<Criteria, Threshold>;
  /** A GPU must be in each. */
  devices: readonly DeviceRule[];
  /** Bans of both files; neither user nor call can lift them. */
  exclude: readonly DeviceRule[];
  excludeNames: readonly NameRule[];
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
  /** Limits of the machine's file, and of the user's. */
  limits?: Limits;
  ownLimits?: Limits;
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
  /** How many background jobs that have ended are kept, and for how long in ms. */
  jobsKept?: number;
  jobsKeptFor?: number;
  /** How much of the output of one job, and of all, is kept, in bytes. */
  jobLogSize?: number;
  jobLogsSize?: number;
  /** The machines that `--hosts all` asks. */
  hosts?: readonly Host[];
}

const NOTHING: Configuration = { files: [], thresholds: {}, devices: [], exclude: [], excludeNames: [] };

/**
 * Reads the configuration files: the machine's (/etc/gpu-owner/config.yaml, or what GPU_OWNER_MACHINE_CONFIG names; '/dev/null'
 * for none) and the user's ($XDG_CONFIG_HOME/gpu-owner/config.yaml, by default in ~/.config). Both may be missing, but not one
 * that GPU_OWNER_MACHINE_CONFIG names. The bans in /etc/gpu-owner/config.yaml count for real GPUs whatever the variable says.
 *
 * Keys are those of the API: `exclude`, `excludeNames`, `devices`, the thresholds, `placeholder`, `visibleDevices` and
 * `conventions`; `hosts`; in the machine's file `lockDirectory`, `lockTimeout` and `order` too; `limits`; `urgent`.
 * {@link loadNotificationTargets} reads the keys for notifications.
 * @throws {GPUOwnerError} ERR_CONFIGURATION, naming file, line and key, and what to do.
 */
export function loadConfiguration(env: NodeJS.ProcessEnv = process.env): Configuration {
  const { machinePath, machine, userPath, user } = loadFiles(env);
  const replaced = machinePath !== MACHINE_FILE && simulatedMachine(env) === null;
  const bans = replaced ? bansOf(loadFile(MACHINE_FILE, 'machine', false)) : null;

  if (bans === null && machine === null && user === null) return NOTHING;
  const found = [
    { source: MACHINE_FILE, entries: bans },
    { source: machinePath, entries: machine },
    { source: userPath ?? '', entries: user },
  ].filter((file): file is { source: string; entries: Entries } => file.entries !== null);
  const rules = <T extends DeviceRule | NameRule>(key: string) =>
    found.flatMap(({ source, entries }) =>
      ((entries[key] as T[] | undefined) ?? []).map((rule) => ({ ...rule, source: sanitize(source, 500) })),
    );
  const settings: Entries = Object.assign({}, ...found.map(({ entries }) => entries));
  const pick = (keys: readonly string[]): Entries =>
    Object.fromEntries(keys.filter((key) => key in settings).map((key) => [key, settings[key]]));
  return {
    files: found.map(({ source }) => source),
    thresholds: pick(THRESHOLDS),
    devices: rules<DeviceRule>('devices'),
    exclude: rules<DeviceRule>('exclude'),
    excludeNames: rules<NameRule>('excludeNames'),
    ...pick([...SETTINGS, ...JOB_KEYS]),
    ...where('limits', (bans?.limits ?? machine?.limits) as Limits | undefined),
    ...where('idle', (bans?.idle ?? machine?.idle) as IdleRules | undefined),
    ...where('shareOveruse', (bans?.shareOveruse ?? machine?.shareOveruse) as Configuration['shareOveruse']),
    ...where('ownLimits', user?.limits as Limits | undefined),
    // A file that a user names with GPU_OWNER_MACHINE_CONFIG permits nothing.
    ...where('usageCommands', (replaced ? bans : machine)?.usageCommands as Configuration['usageCommands']),
    ...where('urgent', (replaced ? bans : machine)?.urgent as UrgentUsers | undefined),
    ...where('enforce', (replaced ? bans : machine)?.enforce as EnforceRules | undefined),
    ...where('bookings', (replaced ? bans : machine)?.bookings as BookingRules | undefined),
  };
}

/** A part with this key; nothing where it isn't set. */
function where<Key extends keyof Configuration>(
  key: Key,
  value: Configuration[Key] | undefined,
): Pick<Configuration, Key> | Record<never, never> {
  return value === undefined ? {} : { [key]: value };
}

/** Where users are told of their jobs. */
export interface NotificationTargets {
  /** A program and its arguments; null: none. */
  command: readonly string[] | null;
  /** A secret. Never in a {@link Configuration}, which others show. */
  webhook: URL | null;
}

/** @throws as {@link loadConfiguration} */
export function loadNotificationTargets(env: NodeJS.ProcessEnv = process.env): NotificationTargets {
  const { machine, user } = loadFiles(env);
  const { notifyCommand, notifyWebhook } = { ...machine, ...user };
  const words = (notifyCommand ?? []) as string[];
  return { command: words.length === 0 ? null : words, webhook: (notifyWebhook as URL | undefined) ?? null };
}

/**
 * The criteria of a call together with the configuration: bans add up, `devices` intersect, thresholds of the call
 * win over those of the configuration.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT for what the call gives.
 */
export function mergeCriteria(
  options: unknown,
  configuration: Configuration,
  settings: NormalizeSettings = {},
): NormalizedCriteria {
  const call = normalizeCriteria(options, settings);
  if (configuration === NOTHING) return { ...call, ofCall: call };
  const given = Object.entries(options ?? {}).filter(([, value]) => value !== undefined);
  const merged = normalizeCriteria({ ...configuration.thresholds, ...Object.fromEntries(given) }, settings);
  return {
    ...merged,
    devices: [...configuration.devices, ...call.devices],
    exclude: [...configuration.exclude, ...call.exclude],
    excludeNames: [...configuration.excludeNames, ...call.excludeNames],
    ofCall: call,
  };
}

function bansOf(entries: Entries | null): Entries | null {
  const bans = Object.entries(entries ?? {}).filter(([key]) => (BANS as readonly string[]).includes(key));
  return bans.length === 0 ? null : Object.fromEntries(bans);
}
