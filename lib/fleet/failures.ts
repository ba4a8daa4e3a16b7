// Why a host gave no answer: each cause with what to do.
import type { Host } from '../config/index.ts';
import { sanitize, schema, showValue } from '../platform/index.ts';
import { isMark } from './request.ts';
import { type SSHResult, sshProgram } from './ssh.ts';

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
  'ERR_HOST_DIRECTORY',
] as const;
export type HostErrorCode = (typeof HOST_ERRORS)[number];

export interface HostFailure {
  code: string;
  /** One line: the cause, and what to do. */
  message: string;
}

export const MAX_MESSAGE_LENGTH = 300;

/** There is no ssh here. */
export function noSSH(): HostFailure {
  return { code: 'ERR_NO_SSH', message: `${sshProgram()} is not installed here. Install the OpenSSH client` };
}

export function notInstalled({ name }: Host): HostFailure {
  return {
    code: 'ERR_HOST_NOT_INSTALLED',
    message: `gpu-owner is neither in PATH nor in ~/.local/bin there. Install it, or say where it is: 'hosts: ["${name}=/PATH/gpu-owner"]' in your configuration`,
  };
}

/** Without the directory in which the command was to run. */
export function noDirectory(directory: string): HostFailure {
  return {
    code: 'ERR_HOST_DIRECTORY',
    message: `there is no directory ${showValue(directory)}, or you may not enter it. --on runs a command in the same directory: make it there, or cd to one that both have`,
  };
}

const ERROR_LINE = schema.jsonOf(
  schema.record({ error: schema.record({ code: schema.matching(/^ERR_[A-Z_]+$/), message: schema.text }) }),
);

/** The error that a gpu-owner there has written: as JSON, or as older versions do. */
export function remoteError(errors: string, exitCode: number): HostFailure {
  for (const line of errors.split('\n').reverse()) {
    const found = schema.readAs(ERROR_LINE, line);
    if (found !== null) return found.error;
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
    /terminating, \d+ bad configuration option|Bad owner or permissions on/,
    'ERR_HOST_UNREACHABLE',
    (name) => `ssh refuses its configuration. Run \`ssh ${name}\`, and correct what it names`,
  ],
  [
    /Unable to negotiate with/,
    'ERR_HOST_UNREACHABLE',
    (name) => `ssh and sshd have no algorithm in common. Run \`ssh ${name}\`, and see what it offers`,
  ],
  [
    /(?:kex|ssh)_exchange_identification|Connection (?:closed|reset) by/,
    'ERR_HOST_UNREACHABLE',
    () =>
      'it closed the connection before the login. sshd is too busy (MaxStartups), or blocks you; try again later',
  ],
];

/**
 * Messages of OpenSSH about the login, and when a connection breaks that was there, old versions' too (sshconnect2.c, packet.c,
 * clientloop.c). Nothing that the host's shell prints can come before the first.
 */
const AFTER_LOGIN =
  /^Authenticated to |^Connection to .* closed by remote|client_loop|packet_write_wait|ssh_dispatch_run_fatal|Read from remote host|Timeout, server/m;

/** Whether a connection broke after the login, or perhaps then. */
export function isLostLate({ exitCode, errors }: SSHResult): boolean {
  return exitCode === 255 && AFTER_LOGIN.test(errors);
}

/**
 * Whether ssh ended before the login, by what it said itself: then nothing runs there. Without a message nobody knows: a connection that
 * ssh shares with others (ControlMaster) ends without one, and so does an ssh that is killed.
 */
export function isBeforeLogin(result: SSHResult): boolean {
  const { exitCode, errors } = result;
  return exitCode === 255 && !isLostLate(result) && SSH_MESSAGES.some(([pattern]) => pattern.test(errors));
}

/** Whether sshd had no time for a login, or a gateway before it: it may have some a moment later. */
export function isTurnedAway(result: SSHResult): boolean {
  return isBeforeLogin(result) && /(?:kex|ssh)_exchange_identification/.test(result.errors);
}

/** The cause for a connection that was there. */
export function brokenConnection(errors: string): string {
  const line = lastLine(errors, '');
  return `the connection broke${line && ': '}${line}`;
}

/** Why ssh ended without an answer. */
export function explain({ name }: Host, { exitCode, output, errors }: SSHResult): HostFailure {
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

/** Messages of OpenSSH for LogLevel=VERBOSE that tell users nothing. */
const CHATTER = /^(?:Authenticated to |Transferred: sent |Bytes per second: sent )/;

/** The last line that says something. */
export function lastLine(text: string, otherwise = 'it printed nothing'): string {
  const lines = text
    .slice(-10_000)
    .split('\n')
    .map((each) => sanitize(each));
  const line = lines.findLast((each) => each !== '' && !isMark(each) && !CHATTER.test(each));
  return (line ?? otherwise).replace(/\.$/, '');
}
