// Messages of OpenSSH (ssh.c, sshconnect.c, sshconnect2.c, packet.c, clientloop.c, mux.c): how far ssh came, and what to do.
import type { HostErrorCode, HostFailure } from './host-failure.ts';
import type { SSHResult } from './ssh.ts';

/**
 * `before`: ssh says it before the login only, so nothing runs there. `during`: also later, by a connection that ssh shares with others
 * (ControlMaster) or an old version. `after`: of a connection that was there. `chatter`: only for LogLevel=VERBOSE, and not for people.
 */
interface SSHMessage {
  pattern: RegExp;
  when: 'before' | 'during' | 'after' | 'chatter';
  /** The cause, and what to do. */
  code?: HostErrorCode;
  explain?: (name: string, errors: string) => string;
}

const SSH_MESSAGES: readonly SSHMessage[] = [
  {
    pattern: /^ssh: Could not resolve hostname/m,
    when: 'before',
    code: 'ERR_HOST_UNREACHABLE',
    explain: () => 'no host has this name. Correct it, or write it into ~/.ssh/config',
  },
  {
    pattern: /REMOTE HOST IDENTIFICATION HAS CHANGED|DNS SPOOFING/,
    when: 'before',
    code: 'ERR_HOST_KEY',
    // The file of keys has the name that ssh connects to, and the port: not an alias of the configuration.
    explain: (name, errors) =>
      `its host key has changed. Ask its administrator why, then run \`ssh-keygen -R '${/^Host key for ([\w.:[\]-]+) has changed/m.exec(errors)?.[1] ?? name}'\``,
  },
  {
    pattern: /^Host key verification failed|host key is known for/im,
    when: 'before',
    code: 'ERR_HOST_KEY',
    explain: (name) => `its host key is unknown. Run \`ssh ${name}\` once, and check the key`,
  },
  {
    pattern: /Permission denied \([\w,-]+\)|Too many authentication failures|No supported authentication/,
    when: 'before',
    code: 'ERR_HOST_LOGIN',
    explain: (name) =>
      `it asks for a password, or refuses your key. Run \`ssh-copy-id ${name}\`, or load your key with \`ssh-add\``,
  },
  {
    pattern: /^ssh: connect to .*: Connection refused/m,
    when: 'before',
    code: 'ERR_HOST_UNREACHABLE',
    explain: () => 'connection refused. Start sshd there, or correct the port in ~/.ssh/config',
  },
  {
    pattern:
      /^ssh: connect to .*(?:timed out|No route to host|unreachable|Host is down)|during banner exchange/im,
    when: 'before',
    code: 'ERR_HOST_UNREACHABLE',
    explain: () => 'it is down, or a firewall is in between. Check that the host is up',
  },
  {
    pattern: /terminating, \d+ bad configuration option|Bad owner or permissions on/,
    when: 'before',
    code: 'ERR_HOST_UNREACHABLE',
    explain: (name) => `ssh refuses its configuration. Run \`ssh ${name}\`, and correct what it names`,
  },
  {
    pattern: /^Unable to negotiate with/m,
    when: 'before',
    code: 'ERR_HOST_UNREACHABLE',
    explain: (name) =>
      `ssh and sshd have no algorithm in common. Run \`ssh ${name}\`, and see what it offers`,
  },
  {
    pattern: /^(?:(?:kex|ssh)_exchange_identification|banner exchange: )/m,
    when: 'before',
    code: 'ERR_HOST_UNREACHABLE',
    explain: () =>
      'it closed the connection before the login. sshd is too busy (MaxStartups), or blocks you; try again later',
  },
  {
    pattern:
      /^Authenticated to |^Connection to .* closed by remote|client_loop|packet_write_wait|ssh_dispatch_run_fatal|Read from remote host|Timeout, server/m,
    when: 'after',
  },
  { pattern: /Connection (?:closed|reset) by|Broken pipe|timed out/i, when: 'during' },
  { pattern: /^(?:Authenticated to |Transferred: sent |Bytes per second: sent )/, when: 'chatter' },
];

/** The message that decides: one about a connection that was there comes last, and says more than those before it. */
function decisive(errors: string): SSHMessage | undefined {
  const found = SSH_MESSAGES.filter(({ pattern, when }) => when !== 'chatter' && pattern.test(errors));
  return found.find(({ when }) => when === 'after') ?? found[0];
}

/** Whether a connection broke after the login, or perhaps then. */
export function isLostLate({ exitCode, errors }: SSHResult): boolean {
  const when = decisive(errors)?.when;
  return exitCode === 255 && (when === 'after' || when === 'during');
}

/**
 * Whether ssh ended before the login, by what it said itself: then nothing runs there. Without such a message it is unknown: a
 * connection that ssh shares with others (ControlMaster) ends without one, and so does an ssh that is killed.
 */
export function isBeforeLogin({ exitCode, errors }: SSHResult): boolean {
  return exitCode === 255 && decisive(errors)?.when === 'before';
}

/** Whether sshd had no time for a login, or a gateway before it: it may have some a moment later. */
export function isTurnedAway(result: SSHResult): boolean {
  return isBeforeLogin(result) && /(?:kex|ssh)_exchange_identification/.test(result.errors);
}

/** The cause and the remedy, where ssh has told the cause. */
export function explainSSH(name: string, errors: string): HostFailure | null {
  const found = SSH_MESSAGES.find(({ pattern, code }) => code !== undefined && pattern.test(errors));
  if (found?.code === undefined || found.explain === undefined) return null;
  return { code: found.code, message: found.explain(name, errors) };
}

export function isChatter(line: string): boolean {
  return SSH_MESSAGES.some(({ pattern, when }) => when === 'chatter' && pattern.test(line));
}
