import type { Writable } from 'node:stream';
import { checkHostName, type Host, loadConfiguration } from '../config/index.ts';
import { formatDuration, sanitize, showValue, sleep, usageError } from '../platform/index.ts';
import {
  brokenConnection,
  explain,
  lastLine,
  MAX_MESSAGE_LENGTH,
  noDirectory,
  noSSH,
  notInstalled,
  remoteError,
} from './failures.ts';
import type { HostErrorCode, HostFailure } from './host-failure.ts';
import { parseRecords, type Records } from './host-records.ts';
import { type Environment, RemoteRequest } from './request.ts';
import { Lines, OWN_CONNECTION, runOverSSH, type SSHResult, WholeOutput } from './ssh.ts';
import { isBeforeLogin, isLostLate, isTurnedAway } from './ssh-messages.ts';

/** `version`: of the host's gpu-owner; null: it didn't say. */
export type HostAnswer<Kind extends keyof Records> = { host: string; version: string | null } & (
  | { records: Records[Kind][]; error: null }
  | { records: null; error: HostFailure }
);

/**
 * Logins at the same time: each takes time of the processor from the others, and gateways drop connections beyond 10 (MaxStartups of sshd).
 * One that lasts longer waits for a host, and counts no more.
 */
const MAX_CONCURRENT_LOGINS = 8;
const LOGIN_MS = 1_000;
/** Between two logins to a host that has turned one away, in ms: each time twice as long. */
const LOGIN_PAUSE_MS = 500;
const MAX_LOGINS = 4;

/** A host, and the directory there if that is another one than here. */
export interface HostInDirectory {
  host: Host;
  directory: string | null;
}

/**
 * The hosts of a list as users type it: names of hosts and groups divided by commas, or a word for all of the configuration.
 * @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export function chooseHosts(list: string, option = '--hosts', word = 'all'): Host[] {
  const { hosts: configured = [], hostGroups = {} } = loadConfiguration();
  if (list.trim() === word) {
    if (configured.length > 0) return [...configured];
    throw usageError(
      `${option} ${word}: no host is configured. Write 'hosts: [NAME, NAME]' into ~/.config/gpu-owner/config.yaml, or name them: ${option} a,b`,
    );
  }
  // Only spaces around a name are a matter of taste.
  const names = list.split(',').map((name) => checkHostName(name.replace(/^ +| +$/g, ''), option));
  const all = names.flatMap((name) => (Object.hasOwn(hostGroups, name) ? (hostGroups[name] ?? []) : [name]));
  return [...new Set(all)].map((name) => configuredHost(name, configured));
}

/** A host by its name, which is none of a group. @throws ERR_CONFIGURATION */
export function configuredHost(name: string, configured = loadConfiguration().hosts ?? []): Host {
  return configured.find((host) => host.name === name) ?? { name, command: null };
}

/**
 * The value of --on: as {@link chooseHosts}, but each name may have a directory: `a,b:/DIR`.
 * @returns `isOne`: it is the name of one host
 * @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export function hostsToUse(list: string, word = 'any'): { hosts: HostInDirectory[]; isOne: boolean } {
  const hosts = new Map<string, HostInDirectory>();
  const entries = list.split(',');
  for (const entry of entries) {
    const at = entry.indexOf(':/');
    const names = at < 0 ? entry : entry.slice(0, at);
    const directory = at < 0 ? null : entry.slice(at + 1);
    for (const host of chooseHosts(names, '--on', word)) hosts.set(host.name, { host, directory });
  }
  const [only] = entries;
  const isOne = entries.length === 1 && hosts.has((only ?? '').trim().replace(/:\/.*/s, ''));
  return { hosts: [...hosts.values()], isOne };
}

/**
 * Asks all hosts at once, and tells of each answer as it arrives.
 * @param words the arguments of gpu-owner there
 * @returns the answers, in the order of the hosts
 */
export async function askHosts<Kind extends keyof Records>(
  hosts: readonly Host[],
  kind: Kind,
  words: readonly string[],
  timeoutMs: number,
  onAnswer: (answer: HostAnswer<Kind>) => void,
): Promise<HostAnswer<Kind>[]> {
  const logins = new Logins();
  const answers = hosts.map(async (host) => {
    const end = await logins.begin();
    const answer = answerOf(kind, words, host.name, await question(host, words, timeoutMs));
    end();
    onAnswer(answer);
    return answer;
  });
  return Promise.all(answers);
}

/** Lets logins begin one after the other, so that the time limit of the last one isn't spent on those before. */
export class Logins {
  readonly #mostMs: number;
  #free = MAX_CONCURRENT_LOGINS;
  readonly #waiting: (() => void)[] = [];

  /** @param mostMs how long a login counts at most, in ms */
  constructor(mostMs = LOGIN_MS) {
    this.#mostMs = mostMs;
  }

  /** Waits for the turn. @returns a function to be called once the host has answered */
  async begin(signal?: AbortSignal): Promise<() => void> {
    if (this.#free > 0) this.#free--;
    else {
      await new Promise<void>((resolve) => {
        this.#waiting.push(resolve);
        signal?.addEventListener('abort', () => resolve(), { once: true });
      });
    }
    let isOver = false;
    const end = () => {
      if (isOver) return;
      isOver = true;
      clearTimeout(timer);
      const next = this.#waiting.shift();
      if (next === undefined) this.#free++;
      else next();
    };
    const timer = setTimeout(end, this.#mostMs);
    return end;
  }
}

/** The arguments of gpu-owner on a host; a function is called for each connection. */
export type Words = readonly string[] | (() => readonly string[]);

/** Between two connections to a host that has failed, in ms: each time twice as long. */
const MIN_RETRY_MS = 1_000;
const MAX_RETRY_MS = 60_000;

/**
 * Asks all hosts for answers that come again and again, over one connection each, until it is aborted. A connection that ends is made
 * again, in pauses that grow.
 * @param words the arguments of gpu-owner there: it prints a line of JSON at a time
 * @param quietMs after this silence a host has failed
 */
export async function watchHosts<Kind extends keyof Records>(
  hosts: readonly Host[],
  kind: Kind,
  words: Words,
  quietMs: number,
  onAnswer: (answer: HostAnswer<Kind>) => void,
  signal: AbortSignal,
): Promise<void> {
  process.getBuiltinModule('node:events').setMaxListeners(0, signal); // each host listens
  const logins = new Logins();
  const watch = async (host: Host) => {
    for (let retry = MIN_RETRY_MS; !signal.aborted; ) {
      const end = await logins.begin(signal);
      const tell = (answer: HostAnswer<Kind>) => {
        end();
        onAnswer(answer);
      };
      const { last, hasAnswered } = await stream(
        host,
        kind,
        typeof words === 'function' ? words() : words,
        quietMs,
        tell,
        signal,
      );
      end();
      if (signal.aborted) return;
      onAnswer(last);
      // Not all at the same time: perhaps it was a gateway that restarted.
      if (hasAnswered) retry = MIN_RETRY_MS;
      await sleep(retry * (0.75 + Math.random() / 2), signal);
      retry = Math.min(2 * retry, MAX_RETRY_MS);
    }
  };
  await Promise.all(hosts.map(watch));
}

/** One connection. @returns the answer with which it ended, and whether there were others */
async function stream<Kind extends keyof Records>(
  host: Host,
  kind: Kind,
  words: readonly string[],
  quietMs: number,
  onAnswer: (answer: HostAnswer<Kind>) => void,
  signal: AbortSignal,
): Promise<{ last: HostAnswer<Kind>; hasAnswered: boolean }> {
  let wrong: string | null = null;
  let hasAnswered = false;
  const hear = (line: string, version: string | null) => {
    if (!line.startsWith('[')) return;
    const records = parseRecords(kind, line);
    wrong = typeof records === 'string' ? records : null;
    if (typeof records === 'string') return;
    hasAnswered = true;
    onAnswer({ host: host.name, version, records, error: null });
  };
  const { version, error } = await listen(host, words, { hear, signal, timeoutMs: () => quietMs });
  const failed = (why: HostFailure) => ({ host: host.name, version, records: null, error: why });
  if (wrong !== null) return { last: failed(senseless(host.name, words, wrong)), hasAnswered };
  const last = error ?? failure('ERR_HOST_UNREACHABLE', 'gpu-owner on the host ended unexpectedly');
  return { last: failed(last), hasAnswered };
}

interface Listening {
  /** Where gpu-owner runs: an absolute path. */
  directory?: string;
  /** Called with each line of its output. An empty one comes first. */
  hear: (line: string, version: string | null) => void;
  /** Called with its standard input; without it, there is none. */
  onStart?: (stdin: Writable) => void;
  /** The longest silence, in ms: asked after each line. */
  timeoutMs: () => number;
  signal: AbortSignal;
}

/** Listens to a gpu-owner on a host until it ends, the connection does, or the signal comes. */
export async function listen(
  host: Host,
  words: readonly string[],
  { directory, hear, onStart, timeoutMs, signal }: Listening,
): Promise<RawResult> {
  const request = new RemoteRequest();
  /** Lines that are no output: of shells, and marks. */
  const others: string[] = [];
  let othersLength = 0;
  let version: string | null | undefined;
  const lines = new Lines((line) => {
    if (signal.aborted) return false;
    if (version !== undefined && !request.isMark(line)) {
      hear(line, version);
      return true;
    }
    othersLength += line.length;
    if (others.length < MAX_OTHER_LINES && othersLength < MAX_OTHER_LENGTH) others.push(line);
    if (version === undefined) {
      version = request.versionIn(others);
      if (version !== undefined) hear('', version);
    }
    return false;
  });
  const input = onStart === undefined ? null : 'open';
  const commandLine = request.commandLine(host, words, directory, input);
  const options = directory === undefined ? [] : [OWN_CONNECTION];
  const ended = await runOverSSH(host.name, commandLine, lines, { timeoutMs, options, signal, onStart });
  const output = `\n${[...others, ended.output].join('\n')}`;
  return interpret(host, request, { ...ended, output }, timeoutMs(), directory);
}

/** Shells print some, not more. */
const MAX_OTHER_LINES = 10_000;
const MAX_OTHER_LENGTH = 1024 * 1024;

function answerOf<Kind extends keyof Records>(
  kind: Kind,
  words: readonly string[],
  host: string,
  answer: RawResult,
): HostAnswer<Kind> {
  const { version, error } = answer;
  if (error !== null) return { host, version, records: null, error };
  const records = parseRecords(kind, answer.output);
  if (typeof records !== 'string') return { host, version, records, error: null };
  return { host, version, records: null, error: senseless(host, words, records) };
}

function senseless(host: string, words: readonly string[], why: string): HostFailure {
  const message = `its answer makes no sense: ${why}. Compare \`ssh ${host} gpu-owner ${words.join(' ')}\``;
  return failure('ERR_HOST_ANSWER', message);
}

/**
 * Submits a job on a host.
 * @param words the arguments of gpu-owner, @param directory where it runs: an absolute path
 * @returns its number. `isCertain`: it was not submitted; otherwise it may have been
 */
export async function submitOnHost(
  host: Host,
  words: readonly string[],
  directory: string,
  timeoutMs: number,
  environment: Environment = [],
): Promise<{ id: number; error: null } | { id: null; error: HostFailure; isCertain: boolean }> {
  const answer = await question(host, words, timeoutMs, directory, environment);
  const check = `The job may have been submitted. Check with \`gpu-owner jobs --hosts ${host.name}\``;
  if (answer.error !== null) {
    const { error, isCertain } = answer;
    if (isCertain) return { id: null, error, isCertain };
    return { id: null, error: failure(error.code, `${error.message}. ${check}`), isCertain };
  }
  const text = answer.output.trim();
  const [id] = /^[1-9]\d{0,8}$/.exec(text) ?? [];
  if (id !== undefined) return { id: Number(id), error: null };
  const printed = text === '' ? 'nothing' : showValue(lastLine(text));
  const error = failure('ERR_HOST_ANSWER', `it printed ${printed} instead of a job number. ${check}`);
  return { id: null, error, isCertain: false };
}

/**
 * Runs a command of gpu-owner on a host, once.
 * @param words its arguments
 * @returns what it has printed, `notes` on standard error. `exitCode` null: it did not come to an end, or that is unknown
 */
export async function commandOnHost(
  host: Host,
  words: readonly string[],
  timeoutMs: number,
): Promise<{ output: string; notes: string; error: null } | { error: HostFailure; exitCode: number | null }> {
  const answer = await question(host, words, timeoutMs);
  if (answer.error !== null) return { error: answer.error, exitCode: answer.exitCode };
  return { output: answer.output, notes: answer.errors, error: null };
}

/** Keeps variables for a command that comes next, in a file on a host that only the user can read. @returns its path there */
export async function keepOnHost(
  host: Host,
  environment: Environment,
  timeoutMs: number,
): Promise<{ path: string; error: null } | { error: HostFailure }> {
  const answer = await question(host, null, timeoutMs, undefined, environment);
  return answer.error === null ? { path: answer.output.trim(), error: null } : { error: answer.error };
}

/**
 * `errors`: its standard error. `exitCode`: that of gpu-owner there, if it failed. `isCertain`: gpu-owner has done nothing there, or has
 * failed.
 */
type RawResult =
  | { version: string | null; output: string; errors: string; error: null; exitCode: 0 }
  | {
      version: string | null;
      error: HostFailure;
      exitCode: number | null;
      isCertain: boolean;
    };

export function failure(code: HostErrorCode | string, message: string): HostFailure {
  return { code: sanitize(code, 40), message: sanitize(message, MAX_MESSAGE_LENGTH) };
}

async function question(
  host: Host,
  words: readonly string[] | null,
  timeoutMs: number,
  directory?: string,
  environment: Environment = [],
): Promise<RawResult> {
  const end = performance.now() + timeoutMs;
  for (let tries = 1; ; tries++) {
    const request = new RemoteRequest();
    const hasSettings = environment.length > 0;
    const commandLine = request.commandLine(host, words, directory, hasSettings ? 'settings' : null);
    const options = directory === undefined ? [] : [OWN_CONNECTION];
    const input = hasSettings ? request.input(environment) : null;
    const remainingMs = end - performance.now();
    const answer = new WholeOutput((...tails) => request.isWhole(...tails));
    const timeout = () => remainingMs;
    const result = await runOverSSH(host.name, commandLine, answer, { timeoutMs: timeout, options, input });
    const rest = LOGIN_PAUSE_MS * 2 ** (tries - 1) * (0.75 + Math.random() / 2);
    if (!isTurnedAway(result) || tries === MAX_LOGINS || performance.now() + rest > end)
      return interpret(host, request, result, timeoutMs, directory);
    await sleep(rest);
  }
}

/** The result of a question, by what ssh, the host's shell and gpu-owner there have said. */
function interpret(
  host: Host,
  request: RemoteRequest,
  result: SSHResult,
  timeoutMs: number,
  directory?: string,
): RawResult {
  const raw = request.read(result.output, result.errors);
  // The exit code of a login shell is there once that has ended.
  const hasEnded = result.cut === null && result.exitCode !== 255;
  const neverRan = result.cut === 'no-ssh' || hasEnded || isBeforeLogin(result);
  const isCertain = raw === null ? neverRan : raw !== 'broken';
  const failed = (code: HostErrorCode | string, message: string, version: string | null = null) => ({
    version,
    error: failure(code, message),
    exitCode: raw !== null && typeof raw === 'object' ? raw.exitCode : null,
    isCertain,
  });
  if (result.cut === 'no-ssh') {
    const { code, message } = noSSH();
    return failed(code, message);
  }
  if (result.cut === 'size')
    return failed(
      'ERR_HOST_ANSWER',
      `it sends more than 16 MiB. See what \`ssh ${host.name} true\` prints: it should be nothing`,
    );
  if (result.cut === 'time')
    return failed(
      'ERR_HOST_TIMEOUT',
      `no answer within ${formatDuration(timeoutMs)}. Check that the host is up; commands with --hosts wait longer by --timeout`,
    );
  if (raw === 'missing') {
    const { code, message } = notInstalled(host);
    return failed(code, message);
  }
  if (raw === 'directory') {
    const { code, message } = noDirectory(host, directory ?? '');
    return failed(code, message);
  }
  if (raw === 'broken' || (raw === null && isLostLate(result))) {
    // A job may have been submitted.
    const remedy = directory === undefined ? '. Try again' : '';
    return failed('ERR_HOST_UNREACHABLE', `${brokenConnection(result.errors)}${remedy}`);
  }
  if (raw === null) {
    const { code, message } = explain(host, result);
    return failed(code, message);
  }
  const version = raw.version === null ? null : sanitize(raw.version, 40);
  if (raw.exitCode === 127 && version === null && host.command !== null)
    return failed(
      'ERR_HOST_NOT_INSTALLED',
      `the configured command is not found there: ${lastLine(raw.errors)}. Correct it in \`hosts\` of your configuration`,
    );
  if (raw.exitCode !== 0) {
    const { code, message, unknown } = remoteError(raw.errors, raw.exitCode);
    if (unknown === undefined) return failed(code, message, version);
    const which = version === null ? 'gpu-owner' : `gpu-owner ${version}`;
    return failed('ERR_HOST_VERSION', `${which} there is too old: ${unknown}. Upgrade it`, version);
  }
  return { version, output: raw.output, errors: raw.errors, error: null, exitCode: 0 };
}
