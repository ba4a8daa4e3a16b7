// A command on another machine, as `ssh HOST COMMAND` runs it: the terminal, input, output and the end of the connection are ssh's business.
import type { Host } from '../config/index.ts';
import { EXIT_CODES } from '../errors.ts';
import { commandProblem } from '../jobs/index.ts';
import { shellWords } from '../platform/index.ts';
import { noDirectory, notInstalled } from './failures.ts';
import type { HostFailure } from './host-failure.ts';
import { encode, enter, FIND, HAS_PROGRAM } from './request.ts';
import { OWN_CONNECTION, sshProgram, sshWords, startSSH, UNATTENDED } from './ssh.ts';

interface RemoteCommand {
  /** The arguments of gpu-owner. */
  words: readonly string[];
  /** Where it runs: an absolute path. */
  directory: string;
  /** A file there with variables for it, which is removed; null: none. */
  settings: string | null;
  /** Whether standard input and output are a terminal, which it then has as well. */
  hasTerminal: boolean;
}

/**
 * Runs a command of gpu-owner on a host. Signals that end this process end it.
 * @returns the exit code of ssh, or the signal that ended it; null: ssh can't be started
 */
export async function runOnHost(host: Host, command: RemoteCommand): Promise<number | NodeJS.Signals | null> {
  const { words, directory, settings, hasTerminal } = command;
  // Afterwards, an exit code may be the command's.
  if (commandProblem([sshProgram()]) !== null) return null;
  // ssh asks for passwords on a terminal only.
  const options = ['LogLevel=ERROR', ...(hasTerminal ? [] : [UNATTENDED, OWN_CONNECTION])];
  const line = commandLineFor(host, words, directory, settings);
  const ssh = startSSH(sshWords(host.name, line, [hasTerminal ? '-t' : '-T'], options), {
    stdio: ['inherit', 'inherit', 'inherit', 'pipe'],
  });
  let sent: NodeJS.Signals | null = null;
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const)
    process.on(signal, () => {
      sent ??= signal;
      ssh.kill(signal === 'SIGQUIT' ? 'SIGTERM' : signal);
    });
  return new Promise((resolve) => {
    ssh.once('error', () => resolve(null));
    ssh.once('close', (code, signal) => resolve(sent ?? signal ?? code));
  });
}

/**
 * A command line that runs a command of gpu-owner in place of the host's shell, so that sshd is its parent, or says why it can't.
 * @param directory where it runs: an absolute path @param settings a file with its variables, which is removed; null: none
 */
function commandLineFor(
  host: Host,
  words: readonly string[],
  directory: string,
  settings: string | null,
): string {
  const unless = (condition: string, { message }: HostFailure, exitCode: number) =>
    `${condition} || { echo ${shellWords([`gpu-owner: ${host.name}: ${message}`])} >&2; exit ${exitCode}; }`;
  const file = shellWords([settings ?? '']);
  // A command of the configuration may be one for a shell.
  const { command } = host;
  const exec = command === null || !/[;&|<>()`'"\\#]/.test(command) ? 'exec env ' : '';
  return encode([
    FIND,
    ...(command === null ? [unless(HAS_PROGRAM, notInstalled(host), EXIT_CODES.ERR_NO_DRIVER)] : []),
    unless(enter(directory), noDirectory(host, directory), EXIT_CODES.ERR_INVALID_ARGUMENT),
    ...(settings === null ? [] : [`eval "$(cat ${file})"; rm -f -- ${file}`]),
    `${exec}${command ?? 'gpu-owner'} ${shellWords(words)}`,
  ]);
}
