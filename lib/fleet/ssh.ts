// One ssh per question. It ends with its time, with too much output, and with this process however that ends.
import type { ChildProcess } from 'node:child_process';
import type { Duplex } from 'node:stream';
import { killGroup } from '../platform/index.ts';

/** How much a host may say; a machine with 16 GPUs and 1000 jobs says less than one MiB. */
const MAX_OUTPUT_BYTES = 16 * 1024 * 1024;
/** Enough for the last mark. */
const TAIL_LENGTH = 200;
/**
 * Between ssh's end and that of its output, or the other way round: what it has left in the background may have its output open for
 * days, and so may programs that a shell has started there.
 */
const LAST_TIMEOUT_MS = 500;

/** Some users see errors alone. Only ssh's other messages tell a connection that broke after the login from one that was never there. */
export const KEEPS_MESSAGES = 'LogLevel=VERBOSE';
/** A connection that ssh shares may have died without anybody's noticing, and outlives what is ended here. */
export const OWN_CONNECTION = 'ControlPath=none';
/** They override settings for interactive sessions in the user's configuration. */
const OPTIONS = [
  '-T',
  '-n',
  '-a',
  '-x',
  ...[
    'BatchMode=yes',
    'ClearAllForwardings=yes',
    'PermitLocalCommand=no',
    'RemoteCommand=none',
    KEEPS_MESSAGES,
  ].flatMap((option) => ['-o', option]),
];

/** The exit code where there is none. */
export const NO_SSH = 254;

/**
 * Becomes ssh, beside a process that kills its group as soon as descriptor 3 is closed: when this process has died, be it by
 * kill -9. A line on it says that all is well. Then the group may live on: it has the proxies of connections that ssh keeps.
 */
const ENDS_WITH_PARENT = endsWithParent('kill -s KILL -- "-$$"');
/** A script that becomes its arguments, beside a process that runs a command as soon as descriptor 3 is closed without a word. */
export function endsWithParent(end: string): string {
  return `{ read -r _ <&3 || ${end}; } </dev/null >/dev/null 2>&1 &
exec 3<&-
command -v "$1" >/dev/null 2>&1 || exit ${NO_SSH}
exec "$@"`;
}

export interface SSHResult {
  /** null: it was killed. */
  exitCode: number | null;
  output: string;
  errors: string;
  /** Why it was cut short. */
  cut: 'time' | 'size' | 'no-ssh' | null;
}

/** The program to start; tests replace it. */
export function sshProgram(env: NodeJS.ProcessEnv = process.env): string {
  return env.GPU_OWNER_SSH || 'ssh';
}

/** Told of an ssh that is running. */
interface Listener {
  onOutput: (chunk: Buffer) => void;
  onErrors: (chunk: Buffer) => void;
  /** It has ended; null: it couldn't be started. What it has left may have its output open still. */
  onExit: (exitCode: number | null) => void;
  /** Nothing can come any longer. */
  onClose?: () => void;
}

/** Starts ssh for a question. @returns what ends it, and everybody's interest in it */
function startSSH(
  host: string,
  commandLine: string,
  listener: Listener,
  more: readonly string[] = [],
): () => void {
  const { spawn } = process.getBuiltinModule('node:child_process');
  const options = [...OPTIONS, ...more.flatMap((option) => ['-o', option])];
  const words = ['-c', ENDS_WITH_PARENT, 'sh', sshProgram(), ...options, '--', host, commandLine];
  const ssh = spawn('/bin/sh', words, {
    // A session of its own: nothing can ask on the terminal, and Ctrl-C reaches it through this process only.
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    env: { ...process.env, LC_ALL: 'C' },
  });
  let hasEnded = false;
  ssh.stdout?.on('data', listener.onOutput);
  ssh.stderr?.on('data', listener.onErrors);
  for (const stream of ssh.stdio) stream?.on('error', () => {});
  ssh.once('error', () => listener.onExit(null));
  ssh.once('exit', (exitCode) => {
    hasEnded = true;
    release(ssh);
    listener.onExit(exitCode ?? 255);
  });
  ssh.once('close', () => listener.onClose?.());
  return () => {
    if (!hasEnded) killGroup(ssh.pid, 'SIGKILL');
    release(ssh);
    ssh.stdout?.destroy();
    ssh.stderr?.destroy();
  };
}

/**
 * Runs a command line on a host. Never throws.
 * @param isWhole whether the output is complete, as its last characters tell
 * @param more options of ssh
 */
export function runOverSSH(
  host: string,
  commandLine: string,
  timeoutMs: number,
  isWhole: (outputTail: string, errorsTail: string) => boolean,
  more: readonly string[],
): Promise<SSHResult> {
  return new Promise((resolve) => {
    const output = new Collected();
    const errors = new Collected();
    let cut: SSHResult['cut'] = null;
    let code: number | null = null;
    let isOver = false;
    let last: NodeJS.Timeout | undefined;

    const finish = () => {
      if (isOver) return;
      isOver = true;
      clearTimeout(timer);
      clearTimeout(last);
      end();
      if (code === NO_SSH && output.bytes === 0 && errors.bytes === 0) cut ??= 'no-ssh';
      resolve({ exitCode: code, output: output.text(), errors: errors.text(), cut });
    };
    const stop = (why: SSHResult['cut']) => {
      cut ??= why;
      finish();
    };
    const timer = setTimeout(() => stop('time'), timeoutMs);
    // What has arrived meanwhile is read between a timer and an immediate.
    const finishSoon = () => {
      last ??= setTimeout(() => setImmediate(finish), LAST_TIMEOUT_MS);
    };
    const look = () => {
      if (isOver || !isWhole(output.tail, errors.tail)) return;
      if (code === null) finishSoon();
      else finish();
    };
    const listener: Listener = {
      onOutput: (chunk) => {
        if (isOver) return;
        if (output.bytes + chunk.length > MAX_OUTPUT_BYTES) return stop('size');
        output.add(chunk);
        look();
      },
      onErrors: (chunk) => {
        if (isOver) return;
        errors.add(chunk);
        look();
      },
      onExit: (exitCode) => {
        if (exitCode === null) return stop('no-ssh');
        code = exitCode;
        finishSoon();
        look();
      },
      onClose: finish,
    };
    const end = startSSH(host, commandLine, listener, more);
  });
}

/**
 * Runs a command line on a host that prints lines for as long as it runs. Never throws.
 * @param onLine called with each line; returns whether it is one that is waited for
 * @param quietMs the longest time without such a line
 * @returns how it ended, with the output that was no line
 */
export function streamOverSSH(
  host: string,
  commandLine: string,
  quietMs: number,
  onLine: (line: string) => boolean,
  signal: AbortSignal,
): Promise<SSHResult> {
  return new Promise((resolve) => {
    const errors = new Collected();
    let left: Buffer[] = [];
    let size = 0;
    let isOver = false;
    const finish = (exitCode: number | null, cut: SSHResult['cut']) => {
      if (isOver) return;
      isOver = true;
      clearTimeout(quiet);
      signal.removeEventListener('abort', abort);
      end();
      const isMissing = exitCode === NO_SSH && errors.bytes === 0;
      const text = Buffer.concat(left).toString('utf8');
      resolve({ exitCode, output: text, errors: errors.text(), cut: isMissing ? 'no-ssh' : cut });
    };
    const abort = () => finish(null, null);
    signal.addEventListener('abort', abort);
    let quiet = setTimeout(() => finish(null, 'time'), quietMs);
    const end = startSSH(host, commandLine, {
      onOutput: (chunk) => {
        for (let rest = chunk; !isOver && rest.length > 0; ) {
          const newline = rest.indexOf(0x0a);
          const part = newline < 0 ? rest : rest.subarray(0, newline);
          rest = newline < 0 ? rest.subarray(rest.length) : rest.subarray(newline + 1);
          size += part.length;
          if (size > MAX_OUTPUT_BYTES) return finish(null, 'size');
          left.push(part);
          if (newline < 0) return;
          const line = Buffer.concat(left).toString('utf8');
          left = [];
          size = 0;
          // It may have ended this.
          if (!onLine(line) || isOver) continue;
          clearTimeout(quiet);
          quiet = setTimeout(() => finish(null, 'time'), quietMs);
        }
      },
      onErrors: (chunk) => errors.add(chunk),
      onExit: (exitCode) => {
        if (exitCode === null) finish(null, 'no-ssh');
        else setTimeout(() => setImmediate(() => finish(exitCode, null)), LAST_TIMEOUT_MS);
      },
    });
    if (signal.aborted) abort();
  });
}

/** The output of a process. It keeps the beginning, and the end of what it has seen. */
class Collected {
  readonly #chunks: Buffer[] = [];
  bytes = 0;
  tail = '';

  add(chunk: Buffer): void {
    this.tail = (this.tail + chunk.toString('latin1', Math.max(0, chunk.length - TAIL_LENGTH))).slice(
      -TAIL_LENGTH,
    );
    if (this.bytes > MAX_OUTPUT_BYTES) return;
    this.#chunks.push(chunk);
    this.bytes += chunk.length;
  }

  text(): string {
    return Buffer.concat(this.#chunks).toString('utf8');
  }
}

/** Lets the process beside ssh go. */
export function release(ssh: ChildProcess): void {
  const parentPipe = ssh.stdio[3] as Duplex | null | undefined;
  if (parentPipe?.writable) parentPipe.end('\n', () => parentPipe.destroy());
}
