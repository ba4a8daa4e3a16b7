// A command on another machine, as `ssh HOST COMMAND` runs it: the terminal, signals and the window's size are ssh's business, and so is
// the end of the connection.
import type { ChildProcess } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import type { Host } from '../config/index.ts';
import { errorMessage, ifPossible } from '../errors.ts';
import { sanitize, shellWords } from '../platform/index.ts';
import {
  brokenConnection,
  explain,
  lastLine,
  MAX_MESSAGE_LENGTH,
  noDirectory,
  noSSH,
  notInstalled,
} from './failures.ts';
import type { HostFailure } from './host-failure.ts';
import { RemoteStart } from './request.ts';
import { NO_SSH, OWN_CONNECTION, startSSH, UNATTENDED } from './ssh.ts';
import { isBeforeLogin, isOfSSH } from './ssh-messages.ts';

/** The end of a command on a host. */
export type RemoteEnd =
  /** `note`: why, as ssh has it; null: it has said nothing, or itself. */
  | { state: 'ended'; exitCode: number; note: string | null }
  /** ssh was killed. */
  | { state: 'killed'; signal: NodeJS.Signals }
  /** The command never ran, or the error says that it may have. */
  | { state: 'failed'; error: HostFailure };

export interface RemoteCommand {
  /** The arguments of gpu-owner. */
  words: readonly string[];
  /** Where it runs: an absolute path. */
  directory: string;
  /** A file there with settings for its environment, which is removed; null: none. */
  settings: string | null;
  /** Whether standard input and output are a terminal, which it then has as well. */
  hasTerminal: boolean;
  onOutput: (bytes: Uint8Array) => void;
}

const MAX_LOG_LENGTH = 100_000;
/** Runs a command of gpu-owner on a host. Signals that end this process end it. Never throws. */
export async function runOnHost(host: Host, command: RemoteCommand): Promise<RemoteEnd> {
  // ssh closes all descriptors from 3 on, so its messages can only be told from those of the command by a file.
  const place = process.env.TMPDIR || '/tmp';
  let directory: string;
  try {
    directory = mkdtempSync(`${place}/gpu-owner-ssh-`);
  } catch (error) {
    const message = `no file can be made in ${place}: ${errorMessage(error)}. Set TMPDIR to another directory`;
    return failed({ code: 'ERR_NO_SSH', message: sanitize(message, MAX_MESSAGE_LENGTH) });
  }
  try {
    return await runLogged(host, command, directory);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

function runLogged(host: Host, command: RemoteCommand, logs: string): Promise<RemoteEnd> {
  const log = `${logs}/log`;
  const { hasTerminal, onOutput } = command;
  const start = new RemoteStart();
  const ssh = startSSH(
    host.name,
    start.commandLine(host, command),
    {
      flags: [hasTerminal ? '-t' : '-T', '-E', log],
      // ssh asks for passwords on a terminal only.
      options: hasTerminal ? [] : [UNATTENDED, OWN_CONNECTION],
      onParentEnd: `{ kill -s HUP "$$"; rm -rf -- ${shellWords([logs])}; }`,
    },
    { stdio: ['inherit', 'pipe', 'inherit', 'pipe'], env: process.env },
  );
  ssh.stdout?.on('data', (bytes: Buffer) => {
    const output = start.read(bytes);
    if (output.length > 0) onOutput(output);
  });
  const signalled = forwardSignals(ssh);
  return new Promise((resolve) => {
    ssh.once('error', () => resolve(failed(noSSH())));
    ssh.once('close', (code, signal) => {
      const own = signalled() ?? signal;
      if (own !== null) return resolve({ state: 'killed', signal: own });
      resolve(judge(host, code ?? 255, start, command.directory, readLog(log)));
    });
  });
}

function judge(host: Host, exitCode: number, start: RemoteStart, directory: string, log: string): RemoteEnd {
  if (start.isOver) {
    const isLost = exitCode === 255 && isOfSSH(log);
    return { state: 'ended', exitCode, note: isLost ? lastLine(log) : null };
  }
  if (start.missing === 'missing') return failed(notInstalled(host));
  if (start.missing === 'directory') return failed(noDirectory(directory));
  if (exitCode === NO_SSH && log === '') return failed(noSSH());
  const [errors, output] = exitCode === 255 ? [log, ''] : ['', start.withheld];
  const result = { exitCode, output, errors, cut: null };
  if (exitCode !== 255 || isBeforeLogin(result)) return failed(explain(host, result));
  // After the login, the host goes on with what it was sent. sshd there may notice hours later that the connection is lost.
  const check = `The command may be running. Check with \`gpu-owner status --hosts ${host.name}\``;
  const message = sanitize(`${brokenConnection(log)}. ${check}`, MAX_MESSAGE_LENGTH);
  return failed({ code: 'ERR_HOST_UNREACHABLE', message });
}

function failed(error: HostFailure): RemoteEnd {
  return { state: 'failed', error };
}

function readLog(path: string): string {
  // There is no log if ssh hasn't even begun.
  return ifPossible(() => readFileSync(path, 'utf8').slice(-MAX_LOG_LENGTH), '');
}

/** ssh decides what becomes of signals. @returns ends that, and tells by which this process would have ended */
function forwardSignals(ssh: ChildProcess): () => NodeJS.Signals | null {
  let first: NodeJS.Signals | null = null;
  const ending: NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'];
  const forward = (signal: NodeJS.Signals) => {
    first ??= signal;
    ssh.kill(signal === 'SIGQUIT' ? 'SIGTERM' : signal);
  };
  for (const signal of ending) process.on(signal, forward);
  return () => {
    for (const signal of ending) process.off(signal, forward);
    return first;
  };
}
