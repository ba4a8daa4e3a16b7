// The configuration of machine and user, as claims use it.
import { sanitize } from '../platform/index.ts';
import { loadFile, loadFiles, MACHINE_FILE } from './configuration-file.ts';
import type { Entries, Settings } from './configuration-keys.ts';
import {
  type Criteria,
  type DeviceRule,
  type NormalizedCriteria,
  type NormalizeSettings,
  normalizeCriteria,
  THRESHOLDS,
  type Threshold,
} from './criteria.ts';
import { simulatedMachine } from './simulation.ts';
import type { Limits } from './user-limits.ts';

const SETTINGS = [
  ...(['placeholder', 'visibleDevices', 'conventions', 'lockDirectory', 'lockTimeout', 'order'] as const),
  ...(['cpuBind', 'hosts', 'hostGroups', 'preemptionGrace', 'usageKept'] as const),
] as const;

/** Keys for background jobs. */
const JOB_KEYS = ['jobsKept', 'jobsKeptFor', 'jobLogSize', 'jobLogsSize'] as const;

/** Keys that hold back GPUs. No option lifts those of the machine's own file. */
const BANS = [
  ...(['devices', 'exclude', 'limits', 'urgent', 'bookings'] as const),
  ...(['enforce', 'usageCommands', 'idle', 'shareOveruse'] as const),
] as const;

/** The configuration files of machine and user together. */
export interface Configuration extends Settings {
  /** The files that were read. */
  files: readonly string[];
  /** The user's over the machine's. */
  thresholds: Pick<Criteria, Threshold>;
  /** A GPU must be in each. */
  devices: readonly DeviceRule[];
  /** Bans of both files; neither user nor call can lift them. */
  exclude: readonly DeviceRule[];
  ownLimits?: Limits;
}

const NOTHING: Configuration = { files: [], thresholds: {}, devices: [], exclude: [] };

/**
 * Reads the configuration files: the machine's (/etc/gpu-owner/config.yaml, or what GPU_OWNER_MACHINE_CONFIG names; '/dev/null'
 * for none) and the user's ($XDG_CONFIG_HOME/gpu-owner/config.yaml, by default in ~/.config). Both may be missing, but not one
 * that GPU_OWNER_MACHINE_CONFIG names. The bans in /etc/gpu-owner/config.yaml count for real GPUs in any case.
 *
 * Keys are those of the API: `exclude`, `devices`, the thresholds, `placeholder`, `visibleDevices`,
 * `conventions` and `cpuBind`; `hosts` and `hostGroups`; in the machine's file `lockDirectory`, `lockTimeout` and `order` too; `limits`; `urgent`.
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
  const rules = <Rule extends object>(listIn: (entries: Entries) => readonly Rule[] | undefined) =>
    found.flatMap(({ source, entries }) =>
      (listIn(entries) ?? []).map((rule) => ({ ...rule, source: sanitize(source, 500) })),
    );
  const settings: Entries = Object.assign({}, ...found.map(({ entries }) => entries));
  return {
    files: found.map(({ source }) => source),
    thresholds: pick(settings, THRESHOLDS),
    devices: rules(({ devices }) => devices),
    exclude: rules(({ exclude }) => exclude),
    ...pick(settings, [...SETTINGS, ...JOB_KEYS]),
    ...pick({ ...machine, ...bans }, ['limits', 'idle', 'shareOveruse']),
    // A file that a user names with GPU_OWNER_MACHINE_CONFIG permits nothing.
    ...pick((replaced ? bans : machine) ?? {}, ['usageCommands', 'urgent', 'enforce', 'bookings']),
    ...(user?.limits === undefined ? {} : { ownLimits: user.limits }),
  };
}

/** The entries of these keys. */
function pick<Key extends keyof Entries>(entries: Entries, keys: readonly Key[]): Pick<Entries, Key> {
  return Object.assign({}, ...keys.filter((key) => key in entries).map((key) => ({ [key]: entries[key] })));
}

/** How users are notified of their jobs. */
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
  return { command: notifyCommand?.length ? notifyCommand : null, webhook: notifyWebhook ?? null };
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
    ofCall: call,
  };
}

function bansOf(entries: Entries | null): Entries | null {
  const bans = pick(entries ?? {}, BANS);
  return Object.keys(bans).length === 0 ? null : bans;
}
