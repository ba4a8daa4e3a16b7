import { isAbsolute } from 'node:path';
import type * as YAML from 'yaml';
import { GPUOwnerError } from '../errors.ts';
import { closest, listWords, parseDuration, pathIn, sanitize, showValue } from '../platform/index.ts';
import { type Kind, problem, readText } from './configuration-file.ts';
import { type ConventionChoice, parseConventions } from './convention-choice.ts';
import {
  type Criteria,
  type DeviceRule,
  type NameRule,
  type NormalizedCriteria,
  type NormalizeSettings,
  normalizeCriteria,
} from './criteria.ts';
import { simulatedMachine } from './simulation.ts';
import { loadYAML, nestingBeyond } from './yaml.ts';

/** The conditions a configuration file may set; a call's own win. */
const THRESHOLDS = [
  'minFreeMemory',
  'maxUsedMemory',
  'allowProcesses',
  'maxPower',
  'maxUtilization',
  'maxTemperature',
] as const;

const PLACEHOLDERS = ['auto', 'keep', 'none'] as const;
const VISIBLE_DEVICES = ['uuid', 'index'] as const;
/** A configuration is two levels deep. */
const MAX_DEPTH = 20;
const MACHINE_FILE = '/etc/gpu-owner/config.yaml';
/** What hold back GPUs; in the machine's own file nobody lifts them. */
const BANS = ['devices', 'exclude', 'excludeNames'] as const;

/** What the configuration files of machine and user say together. What no file says is missing. */
export interface Configuration {
  /** The files that were read. */
  files: readonly string[];
  /** The user's over the machine's. */
  thresholds: Pick<Criteria, (typeof THRESHOLDS)[number]>;
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
}

const NOTHING: Configuration = { files: [], thresholds: {}, devices: [], exclude: [], excludeNames: [] };

type Entries = Partial<Record<string, unknown>>;

/** What a key's value must be; returns it as {@link Configuration} or {@link Criteria} has it. */
const CHECKS: Record<string, (value: unknown, option: string) => unknown> = {
  exclude: (value, option) => criterion('exclude', value, option).exclude,
  excludeNames: (value, option) => criterion('excludeNames', value, option).excludeNames,
  devices: (value, option) => criterion('devices', value, option).devices,
  ...Object.fromEntries(
    THRESHOLDS.map((key) => [key, (value: unknown, option: string) => criterion(key, value, option)[key]]),
  ),
  placeholder: oneOf(PLACEHOLDERS),
  visibleDevices: oneOf(VISIBLE_DEVICES),
  conventions: parseConventions,
  lockDirectory: parseDirectory,
  lockTimeout: parseDuration,
};

const MACHINE_ONLY: Record<string, string> = {
  lockDirectory:
    "all users must lock in the same directory, or they don't see each other's leases; a user's file can't change it. Set it in the machine's file, or GPU_OWNER_LOCK_DIR for everybody",
  lockTimeout: "how long claimants wait for each other is the machine's to say. Set it in the machine's file",
};

/**
 * Reads the configuration files: the machine's (/etc/gpu-owner/config.yaml, or what GPU_OWNER_MACHINE_CONFIG names;
 * '/dev/null' for none) and the user's ($XDG_CONFIG_HOME/gpu-owner/config.yaml, by default in ~/.config). Both may
 * be missing, but not one that GPU_OWNER_MACHINE_CONFIG names. Of real GPUs, the bans in /etc/gpu-owner/config.yaml count
 * whatever the variable says.
 *
 * Keys are those of the API: `exclude`, `excludeNames`, `devices`, the thresholds, `placeholder`, `visibleDevices` and
 * `conventions`; in the machine's file `lockDirectory` and `lockTimeout` too.
 * @throws {GPUOwnerError} ERR_CONFIGURATION, naming file, line and key, and what to do.
 */
export function loadConfiguration(env: NodeJS.ProcessEnv = process.env): Configuration {
  const named = env.GPU_OWNER_MACHINE_CONFIG || undefined;
  const machinePath = named ?? MACHINE_FILE;
  const machine = loadFile(machinePath, 'machine', named !== undefined);
  const userPath = userFile(env);
  const user = userPath === null || userPath === machinePath ? null : loadFile(userPath, 'user', false);
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
    ...pick(['placeholder', 'visibleDevices', 'conventions', 'lockDirectory', 'lockTimeout']),
  };
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

function userFile(env: NodeJS.ProcessEnv): string | null {
  const { XDG_CONFIG_HOME: xdg, HOME: home } = env;
  // The specification has relative paths ignored.
  if (xdg && isAbsolute(xdg)) return pathIn(xdg, 'gpu-owner/config.yaml');
  try {
    const directory = home || process.getBuiltinModule('node:os').homedir();
    return isAbsolute(directory) ? pathIn(directory, '.config/gpu-owner/config.yaml') : null;
  } catch {
    return null; // a uid without an account
  }
}

function loadFile(path: string, kind: Kind, required: boolean): Entries | null {
  if (path === '/dev/null') return null;
  const text = readText(path, kind, required);
  return text === null ? null : parseFile(text, path, kind);
}

function parseFile(text: string, path: string, kind: Kind): Entries {
  const yaml = loadYAML();
  const lines = new yaml.LineCounter();
  const lineAt = (offset: number | undefined) => (offset === undefined ? null : lines.linePos(offset).line);
  const tooDeep = nestingBeyond(yaml, text, MAX_DEPTH);
  if (tooDeep !== null) throw problem(path, tooDeep, 'nested too deep; values are single ones or lists');
  const document = yaml.parseDocument(text, {
    lineCounter: lines,
    prettyErrors: false,
    logLevel: 'error',
    uniqueKeys: false, // checked below: the parser compares each key with each other
  });
  const mistake = document.errors[0] ?? document.warnings[0];
  if (mistake) {
    const several = mistake.code === 'MULTIPLE_DOCS';
    const why = several ? "a second document begins ('---'); leave one" : sanitize(mistake.message);
    throw problem(path, lineAt(mistake.pos[0]), `not valid YAML: ${why}`, mistake);
  }
  const { contents } = document;
  if (contents === null || (yaml.isScalar(contents) && contents.value === null)) return {};
  if (!yaml.isMap(contents)) {
    throw problem(
      path,
      lineAt(rangeOf(contents)),
      "it must have lines such as 'exclude: [0]', a key and its value",
    );
  }
  const entries: Entries = {};
  for (const { key: keyNode, value: valueNode } of contents.items) {
    const line = lineAt(rangeOf(keyNode) ?? rangeOf(valueNode));
    const key = yaml.isScalar(keyNode) ? String(keyNode.value) : '';
    checkKey(key, path, line, kind);
    if (Object.hasOwn(entries, key)) throw problem(path, line, `${key} is there twice; leave one`);
    const value = plainValue(yaml, valueNode, (why) =>
      problem(path, lineAt(rangeOf(valueNode)) ?? line, `${key}: ${why}`),
    );
    try {
      entries[key] = CHECKS[key]?.(value, key);
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
      throw problem(path, lineAt(rangeOf(valueNode)) ?? line, error.message, error);
    }
  }
  return entries;
}

function rangeOf(node: unknown): number | undefined {
  return (node as { range?: [number, number, number] | null } | null)?.range?.[0];
}

function checkKey(key: string, path: string, line: number | null, kind: Kind): void {
  const known = Object.keys(CHECKS).filter(
    (name) => kind === 'machine' || !Object.hasOwn(MACHINE_ONLY, name),
  );
  if (known.includes(key)) return;
  const why = MACHINE_ONLY[key];
  if (Object.hasOwn(MACHINE_ONLY, key) && why)
    throw problem(path, line, `${key} is for the machine's file only: ${why}`);
  const meant = closest(key, known);
  throw problem(
    path,
    line,
    `there is no key ${showValue(key)}${meant ? `; did you mean '${meant}'?` : `; there are ${listWords(known)}`}`,
  );
}

function plainValue(yaml: typeof YAML, node: unknown, refuse: (why: string) => GPUOwnerError): unknown {
  if (yaml.isScalar(node)) {
    if (node.value === null) throw refuse('it has no value; give one or leave the line out');
    return node.value;
  }
  if (node === null) throw refuse('it has no value; give one or leave the line out');
  if (yaml.isAlias(node)) throw refuse("references (*name) aren't read here; write the value itself");
  if (yaml.isSeq(node)) {
    return node.items.map((item) => {
      if (yaml.isScalar(item) && item.value !== null) return item.value;
      if (yaml.isAlias(item)) throw refuse("references (*name) aren't read here; write the value itself");
      throw refuse('the entries of a list must be single values');
    });
  }
  throw refuse('it must be a single value or a list');
}

function criterion(key: keyof Criteria, value: unknown, option: string): NormalizedCriteria {
  // An empty list bans nothing, and for `devices` it is a mistake that the check names.
  return normalizeCriteria({ [key]: value }, { names: { [key]: option } });
}

function oneOf(values: readonly string[]): (value: unknown, option: string) => string {
  return (value, option) => {
    if (typeof value === 'string' && values.includes(value)) return value;
    throw invalid(option, value, `right are ${listWords(values.map(showValue), 'or')}`);
  };
}

function parseDirectory(value: unknown, option: string): string {
  if (typeof value === 'string' && isAbsolute(value) && !value.includes('\0')) return value;
  throw invalid(option, value, 'right is an absolute path such as /var/lock/gpu-owner');
}

function invalid(option: string, value: unknown, right: string): GPUOwnerError {
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', `${option}: ${showValue(value)} isn't possible; ${right}`);
}
