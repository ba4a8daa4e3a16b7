import { checkHostName, type Host, loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { formatDuration, sanitize } from '../platform/index.ts';
import {
  explain,
  type Failure,
  type HostErrorCode,
  lastLine,
  MAX_MESSAGE_LENGTH,
  noDirectory,
  noSSH,
  notInstalled,
  remoteError,
} from './failures.ts';
import { parseRecords, type Records } from './records.ts';
import { RemoteRequest } from './request.ts';
import { runOverSSH } from './ssh.ts';

/** `version`: of the host's gpu-owner; null: it didn't say. */
export type Answer<Kind extends keyof Records> = { host: string; version: string | null } & (
  | { records: Records[Kind][]; error: null }
  | { records: null; error: Failure }
);

/** Between two starts: gateways drop connections of too many who log in at once (MaxStartups of sshd). */
const START_INTERVAL_MS = 20;

/**
 * The hosts of a list as users type it: names divided by commas, or a word for all of the configuration.
 * @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export function chooseHosts(list: string, option = '--hosts', word = 'all'): Host[] {
  const { hosts: configured = [] } = loadConfiguration();
  if (list.trim() === word) {
    if (configured.length > 0) return [...configured];
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `${option} ${word}: no host is configured. Write 'hosts: [NAME, NAME]' into ~/.config/gpu-owner/config.yaml, or name them: ${option} a,b`,
    );
  }
  // Only spaces around a name are a matter of taste.
  const names = list.split(',').map((name) => checkHostName(name.replace(/^ +| +$/g, ''), option));
  return [...new Set(names)].map(
    (name) => configured.find((host) => host.name === name) ?? { name, command: null },
  );
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
  onAnswer: (answer: Answer<Kind>) => void,
): Promise<Answer<Kind>[]> {
  const answers = hosts.map(async (host, i) => {
    if (i > 0) await new Promise((resolve) => setTimeout(resolve, i * START_INTERVAL_MS));
    const answer = await ask(host, kind, words, timeoutMs);
    onAnswer(answer);
    return answer;
  });
  return Promise.all(answers);
}

async function ask<Kind extends keyof Records>(
  { name: host, ...rest }: Host,
  kind: Kind,
  words: readonly string[],
  timeoutMs: number,
): Promise<Answer<Kind>> {
  const answer = await question({ name: host, ...rest }, words, timeoutMs);
  const { version, error } = answer;
  if (error === null) {
    const records = parseRecords(kind, answer.output);
    if (typeof records !== 'string') return { host, version, records, error: null };
    const message = `its answer makes no sense: ${records}. Compare \`ssh ${host} gpu-owner ${words.join(' ')}\``;
    return { host, version, records: null, error: failure('ERR_HOST_ANSWER', message) };
  }
  // A key that may only run one command has that command's output.
  const records = answer.unasked === null ? null : parseRecords(kind, answer.unasked);
  if (Array.isArray(records)) return { host, version: null, records, error: null };
  return { host, version, records: null, error };
}

/**
 * Submits a job on a host. If the connection breaks, nobody knows whether it has been submitted.
 * @param words the arguments of gpu-owner, @param directory where it runs: an absolute path
 * @returns its number
 */
export async function submitOnHost(
  host: Host,
  words: readonly string[],
  directory: string,
  timeoutMs: number,
): Promise<{ id: number; error: null } | { id: null; error: Failure }> {
  const answer = await question(host, words, timeoutMs, directory);
  if (answer.error !== null) return { id: null, error: answer.error };
  const [id] = /^[1-9]\d{0,8}$/.exec(answer.output.trim()) ?? [];
  if (id !== undefined) return { id: Number(id), error: null };
  return {
    id: null,
    error: failure('ERR_HOST_ANSWER', `its answer is no number: ${lastLine(answer.output)}`),
  };
}

/** `unasked`: the output of a host that ran something else instead. */
type RawResult =
  | { version: string | null; output: string; error: null }
  | { version: string | null; unasked: string | null; error: Failure };

function failure(code: HostErrorCode | string, message: string): Failure {
  return { code: sanitize(code, 40), message: sanitize(message, MAX_MESSAGE_LENGTH) };
}

async function question(
  host: Host,
  words: readonly string[],
  timeoutMs: number,
  directory?: string,
): Promise<RawResult> {
  const request = new RemoteRequest();
  const failed = (code: HostErrorCode | string, message: string, version: string | null = null) => ({
    version,
    unasked: null,
    error: failure(code, message),
  });
  const commandLine = request.commandLine(host, words, directory);
  const result = await runOverSSH(host.name, commandLine, timeoutMs, (...tails) => request.isWhole(...tails));
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
      `no answer within ${formatDuration(timeoutMs)}. Check that the host is up, or wait longer with --timeout`,
    );
  const raw = request.read(result.output, result.errors);
  if (raw === 'missing') {
    const { code, message } = notInstalled(host);
    return failed(code, message);
  }
  if (raw === 'directory') {
    const { code, message } = noDirectory(directory ?? '');
    return failed(code, message);
  }
  if (raw === 'broken')
    return failed('ERR_HOST_UNREACHABLE', `the connection broke: ${lastLine(result.errors)}. Try again`);
  if (raw === null) {
    const { code, message } = explain(host, result);
    return { ...failed(code, message), unasked: result.exitCode === 0 ? result.output : null };
  }
  const version = raw.version === null ? null : sanitize(raw.version, 40);
  if (raw.exitCode === 127 && version === null && host.command !== null)
    return failed(
      'ERR_HOST_NOT_INSTALLED',
      `the configured command is not found there: ${lastLine(raw.errors)}. Correct it in \`hosts\` of your configuration`,
    );
  if (raw.exitCode !== 0) {
    const { code, message } = remoteError(raw.errors, raw.exitCode);
    const unknown = /there is no (?:option|command) [^;\s]+/.exec(message)?.[0];
    if (unknown === undefined) return failed(code, message, version);
    const which = version === null ? 'gpu-owner' : `gpu-owner ${version}`;
    return failed('ERR_HOST_VERSION', `${which} there is too old: ${unknown}. Upgrade it`, version);
  }
  return { version, output: raw.output, error: null };
}
