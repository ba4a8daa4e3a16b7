// A command on another machine, as `ssh HOST COMMAND` runs it: the terminal, signals and the window's size are ssh's business, and so is
// the end of the connection.
import type { ChildProcess } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import type { Writable } from 'node:stream';
import type { Host } from '../config/index.ts';
import { errorMessage, ifPossible } from '../errors.ts';
import { formatDuration, sanitize, shellWords } from '../platform/index.ts';
import {
  brokenConnection,
  explain,
  lastLine,
  MAX_MESSAGE_LENGTH,
  noDirectory,
  noSSH,
  notInstalled,
} from './failures.ts';
import type { HostErrorCode, HostFailure } from './host-failure.ts';
import { RemoteStart } from './request.ts';
import { NO_SSH, OWN_CONNECTION, release, startSSH, UNATTENDED } from './ssh.ts';
import { isBeforeLogin, isOfSSH } from './ssh-messages.ts';

/** The end of a command on a host. */
export type RemoteEnd =
  /** `note`: why, as ssh has it; null: it has said nothing, or itself. */
  | { state: 'ended'; exitCode: number; note: string | null }
  /** ssh was killed. */
  | { state: 'killed'; signal: NodeJS.Signals }
  /** The command never ran; without `isCertain` it may have run. */
  | { state: 'failed'; error: HostFailure; isCertain: boolean };

export interface RemoteCommand {
  /** The arguments of gpu-owner. */
  words: readonly string[];
  /** Where it runs: an absolute path. */
  directory: string;
  /** A file there with settings for its environment, which is removed; null: none. */
  settings: string | null;
  /** Whether standard input and output are a terminal, which it then has as well. */
  hasTerminal: boolean;
  /** Nothing is shown, and no input read, until it has GPUs. */
  isQuiet: boolean;
  /** How long the host may take to grant GPUs, in ms; null: as long as the connection lasts. */
  grantTimeoutMs: number | null;
  onOutput: (bytes: Uint8Array) => void;
  onErrors: (bytes: Uint8Array) => void;
}

/** Exit codes of a gpu-owner that has got no GPUs: not enough are free, or there is no such command. */
const CODES: Record<number, string> = {
  75: 'ERR_GPU_UNAVAILABLE',
  126: 'ERR_INVALID_ARGUMENT',
  127: 'ERR_INVALID_ARGUMENT',
};
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
  const { hasTerminal, isQuiet, onOutput, onErrors } = command;
  const start = new RemoteStart(isQuiet);
  const feeds = isQuiet && !hasTerminal;
  const ssh = startSSH(
    host.name,
    start.commandLine(host, command),
    {
      flags: [hasTerminal ? '-t' : '-T', '-E', log],
      // ssh asks for passwords on a terminal only, and never if hosts are tried.
      options: hasTerminal && !isQuiet ? [] : [UNATTENDED, OWN_CONNECTION],
      onParentEnd: `{ kill -s HUP "$$"; rm -rf -- ${shellWords([logs])}; }`,
    },
    {
      stdio: [feeds ? 'pipe' : 'inherit', 'pipe', isQuiet ? 'pipe' : 'inherit', 'pipe'],
      env: process.env,
    },
  );
  let early = '';
  ssh.stdout?.on('data', (bytes: Buffer) => {
    const output = start.read(bytes);
    if (start.isOver && feeds && ssh.stdin !== null) feed(ssh.stdin);
    if (output.length > 0) onOutput(output);
  });
  ssh.stderr?.on('data', (bytes: Buffer) => {
    if (start.isOver) onErrors(bytes);
    else early = (early + bytes.toString()).slice(-MAX_LOG_LENGTH);
  });
  const signalled = forwardSignals(ssh);
  const { grantTimeoutMs } = command;
  return new Promise((resolve) => {
    const giveUp = () => {
      if (start.isOver) return;
      signalled();
      release(ssh);
      ssh.kill();
      resolve(uncertain(host, 'ERR_HOST_TIMEOUT', `no GPUs within ${formatDuration(grantTimeoutMs ?? 0)}`));
    };
    if (grantTimeoutMs !== null) setTimeout(giveUp, grantTimeoutMs).unref();
    ssh.once('error', () => resolve(failed(noSSH())));
    ssh.once('close', (code, signal) => {
      const own = signalled() ?? signal;
      if (own !== null) return resolve({ state: 'killed', signal: own });
      resolve(judge(host, code ?? 255, start, command.directory, { early, log: readLog(log) }));
    });
  });
}

function judge(
  host: Host,
  exitCode: number,
  start: RemoteStart,
  directory: string,
  { early, log }: { early: string; log: string },
): RemoteEnd {
  if (start.isOver) {
    const isLost = exitCode === 255 && isOfSSH(log);
    return { state: 'ended', exitCode, note: isLost ? lastLine(log) : null };
  }
  if (start.missing === 'missing') return failed(notInstalled(host));
  if (start.missing === 'directory') return failed(noDirectory(directory));
  if (exitCode === NO_SSH && early === '' && log === '') return failed(noSSH());
  const [errors, output] = exitCode === 255 ? [log, ''] : [early, start.withheld];
  const result = { exitCode, output, errors, cut: null };
  // After the login, the host goes on with what it was sent: a login shell may take seconds to come to it.
  const mayHaveReached = start.hasReached || (exitCode === 255 && !isBeforeLogin(result));
  if (!mayHaveReached) return failed(explain(host, result));
  if (exitCode === 255) {
    // sshd there may notice hours later, and what it was to say may be on its way still.
    return uncertain(host, 'ERR_HOST_UNREACHABLE', brokenConnection(log));
  }
  const said = `${early}\n${start.withheld}`;
  const ours = said.split(/\r?\n/).findLast((line) => line.startsWith('gpu-owner: '));
  const message = ours?.slice('gpu-owner: '.length).replace(/:$/, '') ?? lastLine(said);
  return failed({
    code: CODES[exitCode] ?? 'ERR_HOST_ANSWER',
    message: sanitize(message, MAX_MESSAGE_LENGTH),
  });
}

function failed(error: HostFailure): RemoteEnd {
  return { state: 'failed', error, isCertain: true };
}

function uncertain({ name }: Host, code: HostErrorCode, why: string): RemoteEnd {
  const check = `The command may be running. Check with \`gpu-owner status --hosts ${name}\``;
  const message = sanitize(`${why}. ${check}`, MAX_MESSAGE_LENGTH);
  return { state: 'failed', error: { code, message }, isCertain: false };
}

function readLog(path: string): string {
  // There is no log if ssh hasn't even begun.
  return ifPossible(() => readFileSync(path, 'utf8').slice(-MAX_LOG_LENGTH), '');
}

let isFed = false;

/** Gives it the standard input of this process, of which nothing has been read before. */
function feed(input: Writable): void {
  if (isFed) return;
  isFed = true;
  process.stdin.pipe(input);
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
