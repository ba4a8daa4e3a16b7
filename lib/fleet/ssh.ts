// One ssh per question. Each ends with its time, with too much output, and with this process however that ends.
import type { ChildProcess, SpawnOptions } from 'node:child_process';
import type { Duplex, Writable } from 'node:stream';
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

/** They override settings in the user's configuration. */
const OPTIONS = ['ClearAllForwardings=yes', 'PermitLocalCommand=no', 'RemoteCommand=none'];
/** Some users see errors alone. Only ssh's other messages tell a connection that broke after the login from one that was never there. */
const LOG_LEVEL = 'LogLevel=VERBOSE';
/** ssh asks for no password. */
export const UNATTENDED = 'BatchMode=yes';
/** A connection that ssh shares may have died unnoticed, and outlives what is ended here. */
export const OWN_CONNECTION = 'ControlPath=none';

/** The exit code where there is none. */
const NO_SSH = 254;

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

/** @param flags and options of ssh */
export function sshWords(
  host: string,
  commandLine: string,
  flags: readonly string[],
  options: readonly string[],
): string[] {
  const settings = [...OPTIONS, ...options].flatMap((option) => ['-o', option]);
  return [sshProgram(), '-a', '-x', ...flags, ...settings, '--', host, commandLine];
}

/**
 * Starts ssh, beside a process that ends it as soon as descriptor 3 is closed: when this process has died, be it by kill -9. A line on it says
 * that all is well. Then what ssh has left may live on: proxies of connections that it keeps.
 */
export function startSSH(words: readonly string[], options: SpawnOptions): ChildProcess {
  const { spawn } = process.getBuiltinModule('node:child_process');
  const script = `{ read -r _ <&3 || kill -s ${options.detached ? 'KILL -- "-$$"' : 'HUP "$$"'}; } </dev/null >/dev/null 2>&1 &
exec 3<&-
command -v "$1" >/dev/null 2>&1 || exit ${NO_SSH}
exec "$@"`;
  const ssh = spawn('/bin/sh', ['-c', script, 'sh', ...words], options);
  for (const stream of ssh.stdio) stream?.on('error', () => {});
  ssh.once('exit', () => release(ssh));
  return ssh;
}

/** Lets the process beside ssh go. */
function release(ssh: ChildProcess): void {
  const parentPipe = ssh.stdio[3] as Duplex | null | undefined;
  if (parentPipe?.writable) parentPipe.end('\n', () => parentPipe.destroy());
}

/** `whole`: all that is waited for is there; `alive`: the time limit restarts; `size`: it is too much. */
export type Heard = 'whole' | 'alive' | 'size' | null;

/** Takes the output of a host. */
export interface OutputReader {
  /** Called with each piece, and after each one of errors, with their last characters. */
  take(chunk: Buffer, errorsTail: string): Heard;
  readonly text: string;
}

interface Running {
  /** The longest time without an output that keeps it alive, in ms: asked after each one. */
  timeoutMs: () => number;
  /** Options of ssh. */
  options: readonly string[];
  signal?: AbortSignal | undefined;
  /** Its standard input; null: none. */
  input?: string | null;
  /** Called with its standard input, which stays open. */
  onStart?: ((stdin: Writable) => void) | undefined;
}

/** Runs a command line on a host. Never throws. */
export function runOverSSH(
  host: string,
  commandLine: string,
  reader: OutputReader,
  { timeoutMs, options, signal, input = null, onStart }: Running,
): Promise<SSHResult> {
  return new Promise((resolve) => {
    const errors = new Collected();
    let isOver = false;
    let exitCode: number | null = null;
    let last: NodeJS.Timeout | undefined;
    const finish = (cut: SSHResult['cut'] = null) => {
      if (isOver) return;
      isOver = true;
      clearTimeout(timer);
      clearTimeout(last);
      signal?.removeEventListener('abort', abort);
      // The group of an ssh that has ended may be another one's by now.
      if (exitCode === null) killGroup(ssh.pid, 'SIGKILL');
      release(ssh);
      ssh.stdout?.destroy();
      ssh.stderr?.destroy();
      const isMissing = exitCode === NO_SSH && reader.text === '' && errors.text === '';
      resolve({ exitCode, output: reader.text, errors: errors.text, cut: isMissing ? 'no-ssh' : cut });
    };
    const abort = () => finish();
    // Output that has arrived meanwhile is read between a timer and an immediate.
    const finishSoon = () => {
      last ??= setTimeout(() => setImmediate(finish), LAST_TIMEOUT_MS);
    };
    const hear = (chunk: Buffer) => {
      const heard = isOver ? null : reader.take(chunk, errors.tail);
      if (heard === 'size') finish('size');
      else if (heard === 'alive' && !isOver) {
        clearTimeout(timer);
        timer = setTimeout(() => finish('time'), timeoutMs());
      } else if (heard === 'whole') exitCode === null ? finishSoon() : finish();
    };
    let timer = setTimeout(() => finish('time'), timeoutMs());
    const hasInput = input !== null || onStart !== undefined;
    const flags = hasInput ? ['-T'] : ['-T', '-n'];
    const words = sshWords(host, commandLine, flags, [LOG_LEVEL, UNATTENDED, ...options]);
    const ssh = startSSH(words, {
      // A session of its own: nothing can ask on the terminal, and Ctrl-C reaches it through this process only.
      detached: true,
      stdio: [hasInput ? 'pipe' : 'ignore', 'pipe', 'pipe', 'pipe'],
      env: { ...process.env, LC_ALL: 'C' },
    });
    if (ssh.stdin !== null) onStart?.(ssh.stdin);
    if (input !== null) ssh.stdin?.end(input);
    ssh.stdout?.on('data', hear);
    ssh.stderr?.on('data', (chunk: Buffer) => {
      if (isOver) return;
      errors.add(chunk);
      hear(Buffer.alloc(0));
    });
    ssh.once('error', () => finish('no-ssh'));
    ssh.once('exit', (code) => {
      exitCode = code ?? 255;
      finishSoon();
      hear(Buffer.alloc(0));
    });
    ssh.once('close', () => finish());
    signal?.addEventListener('abort', abort);
    if (signal?.aborted) abort();
  });
}

/** The answer to a question. */
export class WholeOutput implements OutputReader {
  readonly #output = new Collected();
  readonly #isWhole: (outputTail: string, errorsTail: string) => boolean;

  /** @param isWhole whether it is complete, as its last characters tell */
  constructor(isWhole: (outputTail: string, errorsTail: string) => boolean) {
    this.#isWhole = isWhole;
  }

  take(chunk: Buffer, errorsTail: string): Heard {
    if (this.#output.bytes + chunk.length > MAX_OUTPUT_BYTES) return 'size';
    this.#output.add(chunk);
    return this.#isWhole(this.#output.tail, errorsTail) ? 'whole' : null;
  }

  get text(): string {
    return this.#output.text;
  }
}

/** The lines of a command that prints some for as long as it runs. */
export class Lines implements OutputReader {
  readonly #onLine: (line: string) => boolean;
  #left: Buffer[] = [];
  #size = 0;

  /** @param onLine called with each line; returns whether it is one that is waited for */
  constructor(onLine: (line: string) => boolean) {
    this.#onLine = onLine;
  }

  take(chunk: Buffer): Heard {
    let heard: Heard = null;
    for (let rest = chunk; rest.length > 0; ) {
      const newline = rest.indexOf(0x0a);
      const part = newline < 0 ? rest : rest.subarray(0, newline);
      rest = newline < 0 ? rest.subarray(rest.length) : rest.subarray(newline + 1);
      this.#size += part.length;
      if (this.#size > MAX_OUTPUT_BYTES) return 'size';
      this.#left.push(part);
      if (newline < 0) break;
      const line = this.text;
      this.#left = [];
      this.#size = 0;
      if (this.#onLine(line)) heard = 'alive';
    }
    return heard;
  }

  /** The output that is no line yet. */
  get text(): string {
    return Buffer.concat(this.#left).toString('utf8');
  }
}

/** The output of a process. The beginning is kept, and the end of what was seen. */
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

  get text(): string {
    return Buffer.concat(this.#chunks).toString('utf8');
  }
}
