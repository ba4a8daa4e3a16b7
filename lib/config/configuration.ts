import { closeSync, constants, fstatSync, openSync, statSync } from 'node:fs';
import type * as YAML from 'yaml';
import { GPUOwnerError } from '../errors.ts';
import {
  closest,
  decode,
  invalidArgument,
  invalidValue,
  isMissing,
  isRoot,
  listWords,
  oneOf,
  parseAbsolutePath,
  parseDuration,
  parseSize,
  pathIn,
  readAtMost,
  sanitize,
  schema,
  showValue,
} from '../platform/index.ts';
import { type ConventionChoice, parseConventions } from './convention-choice.ts';
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
import { type Host, parseHosts } from './hosts.ts';
import { type Limits, parseLimits } from './limits.ts';
import { simulatedMachine } from './simulation.ts';
import { parseUrgent, type UrgentUsers } from './urgent.ts';

const PLACEHOLDERS = ['auto', 'keep', 'none'] as const;
const VISIBLE_DEVICES = ['uuid', 'index'] as const;
const ORDERS = ['fair', 'fifo'] as const;
const SETTINGS = [
  ...['placeholder', 'visibleDevices', 'conventions', 'lockDirectory', 'lockTimeout', 'order', 'hosts'],
];
/** Keys for background jobs. */
const JOB_KEYS = ['jobsKept', 'jobsKeptFor', 'jobLogSize', 'jobLogsSize'];
/** How many characters the URL of a webhook may have. */
const MAX_URL_LENGTH = 2_000;
/** A configuration is two levels deep. */
const MAX_DEPTH = 20;
/** A configuration has some hundred bytes; the parser's time grows with the square of the number of keys. */
const MAX_BYTES = 64 * 1024;

/** The owner of a configuration file. */
type Kind = 'machine' | 'user';
const MACHINE_FILE = '/etc/gpu-owner/config.yaml';
/** Keys that hold back GPUs. No option lifts those of the machine's own file. */
const BANS = ['devices', 'exclude', 'excludeNames', 'limits', 'urgent'] as const;

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

type Entries = Partial<Record<string, unknown>>;

/** Checks a key's value, and returns it as {@link Configuration} or {@link Criteria} has it. */
const CHECKS: Record<string, (value: unknown, option: string) => unknown> = {
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
  limits: (value) => value,
  urgent: (value) => value,
  notifyCommand: parseWords,
  notifyWebhook: parseWebhook,
};

/** Only programs count milliseconds: a number in a file has lost its unit. */
function durationOf(value: unknown, option: string): number {
  return parseDuration(typeof value === 'number' ? String(value) : value, option);
}

const MACHINE_ONLY: Record<string, string> = {
  lockDirectory:
    "all users must lock in the same directory, or they don't see each other's leases; a user's file can't change it. Set it in the machine's file, or GPU_OWNER_LOCK_DIR for everybody",
  lockTimeout: "it must be the same for all claims of the machine. Set it in the machine's file",
  order: "all users wait in the same queue. Set it in the machine's file",
  urgent: "nobody permits this to himself. Set it in the machine's file",
};

const USER_ONLY: Record<string, string> = {
  notifyWebhook:
    "its URL is a secret, and everybody reads this one. Set it in ~/.config/gpu-owner/config.yaml; a machine's file may have notifyCommand",
};

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
    ...where('ownLimits', user?.limits as Limits | undefined),
    // A file that a user names with GPU_OWNER_MACHINE_CONFIG permits nothing.
    ...where('urgent', (replaced ? bans : machine)?.urgent as UrgentUsers | undefined),
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

function loadFiles(env: NodeJS.ProcessEnv) {
  const named = env.GPU_OWNER_MACHINE_CONFIG || undefined;
  const machinePath = named ?? MACHINE_FILE;
  const machine = loadFile(machinePath, 'machine', named !== undefined);
  const userPath = userFile(env);
  const user = userPath === null || userPath === machinePath ? null : loadFile(userPath, 'user', false);
  return { machinePath, machine, userPath, user };
}

function bansOf(entries: Entries | null): Entries | null {
  const bans = Object.entries(entries ?? {}).filter(([key]) => (BANS as readonly string[]).includes(key));
  return bans.length === 0 ? null : Object.fromEntries(bans);
}

function userFile(env: NodeJS.ProcessEnv): string | null {
  const { XDG_CONFIG_HOME: xdg, HOME: home } = env;
  // The specification has relative paths ignored.
  if (schema.isAbsolutePath(xdg)) return pathIn(xdg, 'gpu-owner/config.yaml');
  try {
    const directory = home || process.getBuiltinModule('node:os').homedir();
    return schema.isAbsolutePath(directory) ? pathIn(directory, '.config/gpu-owner/config.yaml') : null;
  } catch {
    return null; // a uid without an account
  }
}

function loadFile(path: string, kind: Kind, required: boolean): Entries | null {
  if (path === '/dev/null') return null;
  const file = readText(path, kind, required);
  if (file === null) return null;
  const entries = parseFile(file.text, path, kind);
  if (entries.notifyWebhook !== undefined && (file.mode & 0o077) !== 0)
    throw problem(path, null, 'others may read it, and the URL of notifyWebhook is a secret; chmod 600');
  return entries;
}

/** The error for a mistake in a file, with its line. */
export function problem(path: string, line: number | null, text: string, cause?: unknown): GPUOwnerError {
  const where = line === null ? sanitize(path, 500) : `${sanitize(path, 500)}:${line}`;
  return new GPUOwnerError('ERR_CONFIGURATION', `${where}: ${text}`, { cause });
}

/**
 * The text of a configuration file; null where there is none. The file must be one that others can't have tampered with.
 * @param required whether the file was named explicitly, so that it must exist.
 * @throws {GPUOwnerError} ERR_CONFIGURATION
 */
function readText(path: string, kind: Kind, required: boolean): { text: string; mode: number } | null {
  // The usual case, without the error that would have to be made for it.
  if (!required && isMissing(path)) return null;
  let descriptor: number;
  try {
    // O_NONBLOCK: a FIFO must not hold a claim up.
    descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') {
      if (!required) return null;
      throw problem(
        path,
        null,
        "GPU_OWNER_MACHINE_CONFIG names this file, and it doesn't exist; create it, unset the variable, or set it to /dev/null for none",
        error,
      );
    }
    // The home of another user, after `su` or `sudo` kept HOME: not our user's file.
    if (code === 'EACCES' && kind === 'user' && !canSee(path)) return null;
    if (code === 'EACCES') {
      throw problem(path, null, 'no permission to read it; let everybody read it (chmod a+r)', error);
    }
    throw problem(path, null, `it can't be opened (${code ?? message})`, error);
  }
  try {
    const stat = fstatSync(descriptor);
    if (stat.isDirectory()) throw problem(path, null, 'it is a directory; it must be a file in YAML');
    if (!stat.isFile()) throw problem(path, null, 'it is not a regular file; it must be a file in YAML');
    checkTrust(path, stat.mode, stat.uid, kind, required);
    const refuse = (why: string, cause?: unknown) => problem(path, null, why, cause);
    const tooLarge = 'it is larger than 64 KiB; is it really the configuration?';
    const text = decode(readAtMost(descriptor, MAX_BYTES, tooLarge, refuse), refuse);
    return { text, mode: stat.mode };
  } finally {
    closeSync(descriptor);
  }
}

function canSee(path: string): boolean {
  try {
    statSync(path);
    return true;
  } catch {
    return false;
  }
}

function checkTrust(path: string, mode: number, uid: number, kind: Kind, named: boolean): void {
  if ((mode & 0o002) !== 0) {
    throw problem(path, null, 'everybody may write to it, so anybody could change it; chmod o-w');
  }
  if (kind === 'user' || isRoot(uid) || (named && uid === process.geteuid?.())) return;
  throw problem(path, null, `it belongs to uid ${uid}; the machine's file must belong to root (chown root)`);
}

function parseFile(text: string, path: string, kind: Kind): Entries {
  // The Debian package brings such a file, and loading the parser takes 10 ms of each start.
  if (/^(?:[ ]*(?:#[\x20-\x7e]*)?\n)*$/.test(text)) return {};
  const yaml = loadYAML();
  const lines = new yaml.LineCounter();
  const lineAt = (offset: number | undefined) => (offset === undefined ? null : lines.linePos(offset).line);
  const tooDeep = nestingBeyond(yaml, text, MAX_DEPTH);
  if (tooDeep !== null) throw problem(path, tooDeep, 'nested too deep; a value is a single one or a list');
  const document = yaml.parseDocument(text, {
    lineCounter: lines,
    prettyErrors: false,
    logLevel: 'error',
    uniqueKeys: false, // checked below: the parser compares each key with each other
  });
  const mistake = document.errors[0] ?? document.warnings[0];
  if (mistake) {
    const several = mistake.code === 'MULTIPLE_DOCS';
    // Some messages of the parser quote the file, which may have a secret.
    const { code, message } = mistake;
    const said = text.includes('notifyWebhook') ? code.toLowerCase().replaceAll('_', ' ') : sanitize(message);
    const why = several ? "a second document begins ('---'); remove it" : said;
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
    if (Object.hasOwn(entries, key)) throw problem(path, line, `${key} is given twice; remove one`);
    const refuse = (node: unknown, why: string) => problem(path, lineAt(rangeOf(node)) ?? line, why);
    const value =
      key === 'limits'
        ? parseLimits(yaml, valueNode, kind === 'machine', refuse)
        : key === 'urgent'
          ? parseUrgent(yaml, valueNode, refuse)
          : plainValue(yaml, valueNode, (why) => refuse(valueNode, `${key}: ${why}`));
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
  const [foreign, owner] = kind === 'machine' ? [USER_ONLY, "a user's"] : [MACHINE_ONLY, "the machine's"];
  const known = Object.keys(CHECKS).filter((name) => !Object.hasOwn(foreign, name));
  if (known.includes(key)) return;
  if (Object.hasOwn(foreign, key))
    throw problem(path, line, `${key} is for ${owner} file only: ${foreign[key]}`);
  const meant = closest(key, known);
  // Without the space behind a colon, a secret is a part of the key.
  const shown = key.includes('://')
    ? 'with a URL in it: a space is missing behind its colon'
    : showValue(key);
  throw problem(
    path,
    line,
    `there is no key ${shown}${meant ? `; did you mean '${meant}'?` : `; the known ones are ${listWords(known)}`}`,
  );
}

function plainValue(yaml: typeof YAML, node: unknown, refuse: (why: string) => GPUOwnerError): unknown {
  if (yaml.isScalar(node)) {
    if (node.value === null) throw refuse('it has no value; give one or leave the line out');
    return node.value;
  }
  if (node === null) throw refuse('it has no value; give one or leave the line out');
  if (yaml.isAlias(node)) throw refuse('YAML aliases (*name) are not supported here; write the value itself');
  if (yaml.isSeq(node)) {
    return node.items.map((item) => {
      if (yaml.isScalar(item) && item.value !== null) return item.value;
      if (yaml.isAlias(item))
        throw refuse('YAML aliases (*name) are not supported here; write the value itself');
      throw refuse('the entries of a list must be single values');
    });
  }
  throw refuse('it must be a single value or a list');
}

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

/** Loaded only where there is a file, and synchronously, as constructors need the result. */
export function loadYAML(): typeof YAML {
  const require = process.getBuiltinModule('node:module').createRequire(import.meta.filename);
  return require('yaml') as typeof YAML;
}

/**
 * The line of something that is nested deeper than so many levels; null: nothing is. Composing a document recurses, and a stack
 * that fills up can take the whole process down, so this is measured before, in the parser's flat syntax tree.
 */
export function nestingBeyond(yaml: typeof YAML, text: string, maxDepth: number): number | null {
  const lines = new yaml.LineCounter();
  const open: { token: YAML.CST.Token; depth: number }[] = [];
  for (const token of new yaml.Parser(lines.addNewLine).parse(text)) open.push({ token, depth: 0 });
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    const { token, depth } = next;
    if (depth > maxDepth) return lines.linePos(token.offset).line;
    if (token.type === 'document' && token.value) open.push({ token: token.value, depth });
    if (!('items' in token)) continue;
    for (const { key, value } of token.items) {
      if (key) open.push({ token: key, depth: depth + 1 });
      if (value) open.push({ token: value, depth: depth + 1 });
    }
  }
  return null;
}
