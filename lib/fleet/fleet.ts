import { checkHostName, type Host, loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { formatDuration, sanitize } from '../platform/index.ts';
import { parseRecords, type Records } from './records.ts';
import { RemoteRequest } from './request.ts';
import { runOverSSH, type SSHResult, sshProgram } from './ssh.ts';

/** Why a host gave no answer. Codes of {@link GPUOwnerError} are the host's own. */
export const HOST_ERRORS = [
  'ERR_NO_SSH',
  'ERR_HOST_UNREACHABLE',
  'ERR_HOST_KEY',
  'ERR_HOST_LOGIN',
  'ERR_HOST_TIMEOUT',
  'ERR_HOST_NOT_INSTALLED',
  'ERR_HOST_VERSION',
  'ERR_HOST_ANSWER',
] as const;
export type HostErrorCode = (typeof HOST_ERRORS)[number];

export interface Failure {
  code: string;
  /** One line: the cause, and what to do. */
  message: string;
}

/** `version`: of the host's gpu-owner; null: it didn't say. */
export type Answer<Kind extends keyof Records> = { host: string; version: string | null } & (
  | { records: Records[Kind][]; error: null }
  | { records: null; error: Failure }
);

/** Between two starts: gateways drop connections of too many who log in at once (MaxStartups of sshd). */
const START_INTERVAL_MS = 20;
const MAX_MESSAGE_LENGTH = 300;

/**
 * The hosts of a list as users type it: names divided by commas, or `all` of the configuration.
 * @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export function chooseHosts(list: string): Host[] {
  const { hosts: configured = [] } = loadConfiguration();
  if (list.trim() === 'all') {
    if (configured.length > 0) return [...configured];
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      "--hosts all: no host is configured. Write 'hosts: [NAME, NAME]' into ~/.config/gpu-owner/config.yaml, or name them: --hosts a,b",
    );
  }
  // Only spaces around a name are a matter of taste.
  const names = list.split(',').map((name) => checkHostName(name.replace(/^ +| +$/g, ''), '--hosts'));
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
  host: Host,
  kind: Kind,
  words: readonly string[],
  timeoutMs: number,
): Promise<Answer<Kind>> {
  const request = new RemoteRequest();
  const failed = (code: HostErrorCode | string, message: string, version: string | null = null) => ({
    host: host.name,
    version,
    records: null,
    error: { code: sanitize(code, 40), message: sanitize(message, MAX_MESSAGE_LENGTH) },
  });
  const result = await runOverSSH(host.name, request.commandLine(host, words), timeoutMs, (...tails) =>
    request.isWhole(...tails),
  );
  if (result.cut === 'no-ssh')
    return failed('ERR_NO_SSH', `${sshProgram()} is not installed here. Install the OpenSSH client`);
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
  if (raw === 'missing')
    return failed(
      'ERR_HOST_NOT_INSTALLED',
      `gpu-owner is neither in PATH nor in ~/.local/bin there. Install it, or say where it is: 'hosts: ["${host.name}=/PATH/gpu-owner"]' in your configuration`,
    );
  if (raw === 'broken')
    return failed('ERR_HOST_UNREACHABLE', `the connection broke: ${lastLine(result.errors)}. Try again`);
  if (raw === null) {
    // A key that may only run one command has that command's output.
    const records = result.exitCode === 0 ? parseRecords(kind, result.output) : null;
    if (Array.isArray(records)) return { host: host.name, version: null, records, error: null };
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
    const { code, message } = remoteError(raw.errors, raw.exitCode);
    const unknown = /there is no (?:option|command) [^;\s]+/.exec(message)?.[0];
    if (unknown === undefined) return failed(code, message, version);
    const which = version === null ? 'gpu-owner' : `gpu-owner ${version}`;
    return failed('ERR_HOST_VERSION', `${which} there is too old: ${unknown}. Upgrade it`, version);
  }
  const records = parseRecords(kind, raw.output);
  if (typeof records !== 'string') return { host: host.name, version, records, error: null };
  return failed(
    'ERR_HOST_ANSWER',
    `its answer makes no sense: ${records}. Compare \`ssh ${host.name} gpu-owner ${words.join(' ')}\``,
    version,
  );
}

/** The error that a gpu-owner there has written: as JSON, or as older versions do. */
function remoteError(errors: string, exitCode: number): Failure {
  for (const line of errors.split('\n').reverse()) {
    if (!line.startsWith('{')) continue;
    try {
      const { error } = JSON.parse(line) as { error?: Partial<Failure> };
      const { code, message } = error ?? {};
      if (typeof code === 'string' && /^ERR_[A-Z_]+$/.test(code) && typeof message === 'string')
        return { code, message };
    } catch {
      // Not ours.
    }
  }
  const said = lastLine(errors).replace(/^gpu-owner: /, '');
  return { code: 'ERR_HOST_ANSWER', message: `gpu-owner there failed with exit code ${exitCode}: ${said}` };
}

/** Messages of OpenSSH (ssh.c, sshconnect.c, sshconnect2.c), each with what it means here. */
const SSH_MESSAGES: [pattern: RegExp, code: HostErrorCode, message: (name: string) => string][] = [
  [
    /Could not resolve hostname/,
    'ERR_HOST_UNREACHABLE',
    () => 'no host has this name. Correct it, or write it into ~/.ssh/config',
  ],
  [
    /REMOTE HOST IDENTIFICATION HAS CHANGED|DNS SPOOFING/,
    'ERR_HOST_KEY',
    (name) => `its host key has changed. Ask its administrator why, then run \`ssh-keygen -R ${name}\``,
  ],
  [
    /Host key verification failed|host key is known for/i,
    'ERR_HOST_KEY',
    (name) => `its host key is unknown. Run \`ssh ${name}\` once, and check the key`,
  ],
  [
    /Permission denied|Too many authentication failures|No supported authentication/,
    'ERR_HOST_LOGIN',
    (name) =>
      `it asks for a password, or refuses your key. Run \`ssh-copy-id ${name}\`, or load your key with \`ssh-add\``,
  ],
  [
    /Connection refused/,
    'ERR_HOST_UNREACHABLE',
    () => 'connection refused. Start sshd there, or correct the port in ~/.ssh/config',
  ],
  [
    /timed out|No route to host|unreachable|Host is down/i,
    'ERR_HOST_UNREACHABLE',
    () => 'it is down, or a firewall is in between. Check that the host is up',
  ],
  [
    /kex_exchange_identification|Connection (?:closed|reset) by/,
    'ERR_HOST_UNREACHABLE',
    () =>
      'it closed the connection before the login. sshd is too busy (MaxStartups), or blocks you; try again later',
  ],
];

/** Why ssh ended without an answer. */
function explain({ name }: Host, { exitCode, output, errors }: SSHResult): Failure {
  // Other programs can have these words in what they say, but ssh ends with 255.
  if (exitCode === 255) {
    for (const [pattern, code, message] of SSH_MESSAGES) {
      if (pattern.test(errors)) return { code, message: message(name) };
    }
    return {
      code: 'ERR_HOST_UNREACHABLE',
      message: `ssh failed: ${lastLine(errors)}. Try \`ssh ${name} true\``,
    };
  }
  const { code, message } = remoteError(errors, exitCode ?? 0);
  if (code !== 'ERR_HOST_ANSWER') return { code, message };
  const said = errors.trim() === '' ? lastLine(output) : lastLine(errors);
  return {
    code,
    message: `its shell ran no command (exit code ${exitCode}): ${said}. Try \`ssh ${name} true\``,
  };
}

function lastLine(text: string): string {
  const lines = text.slice(-10_000).split('\n');
  const line = lines.map((each) => sanitize(each)).findLast((each) => each !== '');
  return (line ?? 'it said nothing').replace(/\.$/, '');
}
