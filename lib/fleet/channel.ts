// A gpu-owner on another machine that speaks with this process for long, line by line, over the standard streams of one ssh.
import type { ChildProcess } from 'node:child_process';
import type { Host } from '../config/index.ts';
import { errorMessage } from '../errors.ts';
import { formatDuration, killGroup, sanitize } from '../platform/index.ts';
import {
  brokenConnection,
  explain,
  MAX_MESSAGE_LENGTH,
  noSSH,
  notInstalled,
  remoteError,
} from './failures.ts';
import type { HostErrorCode, HostFailure } from './host-failure.ts';
import { RemoteProgram } from './request.ts';
import { Lines, NO_SSH, OWN_CONNECTION, release, startSSH, UNATTENDED } from './ssh.ts';
import { hasEndedThere } from './ssh-messages.ts';

export interface ChannelOptions {
  /** The arguments of gpu-owner. */
  words: readonly string[];
  /** Where it runs: an absolute path. */
  directory: string;
  /** The connection ends after this silence of gpu-owner, in ms. */
  quietMs: number;
  /** Called when gpu-owner starts there, which may then be sent lines. */
  onBegin: () => void;
  /** Called with each of its lines. An error ends the connection. */
  onLine: (line: string) => void;
}

export interface Channel {
  send(line: string): void;
  /** Ends the connection, and so, unless it is cut off, gpu-owner there. */
  close(): void;
  /** Why the connection ended; null: gpu-owner ended with exit code 0, or the channel was closed. Never rejects. */
  readonly ended: Promise<HostFailure | null>;
  /** Whether gpu-owner there is known to have ended. Otherwise the connection alone has. */
  readonly isOver: boolean;
}

/** Enough for the last lines of ssh and gpu-owner. */
const MAX_ERRORS_LENGTH = 100_000;
const MAX_EARLY_LENGTH = 10_000;
/** How long a login and the start of gpu-owner may take, in ms. */
const LOGIN_TIMEOUT_MS = 30_000;
/** Between the end of ssh and that of its output: what a shell has left in the background may have it open. */
const LAST_TIMEOUT_MS = 500;

/** Starts gpu-owner on a host. The connection ends with this process, however that ends. */
export function openChannel(host: Host, options: ChannelOptions): Channel {
  return new SSHChannel(host, options);
}

class SSHChannel implements Channel {
  readonly ended: Promise<HostFailure | null>;
  readonly #host: Host;
  readonly #options: ChannelOptions;
  readonly #program = new RemoteProgram();
  readonly #lines = new Lines((line) => this.#read(line));
  readonly #ssh: ChildProcess;
  #timer: NodeJS.Timeout;
  #state: 'starting' | 'reached' | 'begun' = 'starting';
  /** The failure that has ended it from here. */
  #failure: HostFailure | null = null;
  #isClosed = false;
  #hasSpoken = false;
  #exitCode: number | null = null;
  isOver = false;
  #early = '';
  #errors = '';

  constructor(host: Host, options: ChannelOptions) {
    this.#host = host;
    this.#options = options;
    this.#ssh = startSSH(
      host.name,
      this.#program.commandLine(host, options.words, options.directory),
      { flags: ['-T'], options: [UNATTENDED, OWN_CONNECTION], onParentEnd: 'kill -s KILL -- "-$$"' },
      // A session of its own: Ctrl-C reaches it through this process only.
      { detached: true, stdio: ['pipe', 'pipe', 'pipe', 'pipe'], env: { ...process.env, LC_ALL: 'C' } },
    );
    this.#timer = this.#giveUpAfter(LOGIN_TIMEOUT_MS);
    this.#ssh.stdout?.on('data', (chunk: Buffer) => this.#hear(chunk));
    this.#ssh.stderr?.on('data', (chunk: Buffer) => {
      this.#errors = (this.#errors + chunk.toString()).slice(-MAX_ERRORS_LENGTH);
    });
    this.ended = this.#untilEnd();
  }

  send(line: string): void {
    if (this.#ssh.stdin?.writable) this.#ssh.stdin.write(`${line}\n`);
  }

  close(): void {
    this.#isClosed = true;
    this.#end();
  }

  #fail(reason: HostFailure): void {
    this.#failure ??= reason;
    this.#end();
  }

  #end(): void {
    // The group of an ssh that has ended may be another one's by now.
    if (this.#exitCode === null) killGroup(this.#ssh.pid, 'SIGKILL');
    release(this.#ssh);
  }

  #giveUpAfter(ms: number): NodeJS.Timeout {
    return setTimeout(() => {
      this.#fail(failure('ERR_HOST_TIMEOUT', `nothing was heard of it for ${formatDuration(ms)}`));
    }, ms);
  }

  #hear(chunk: Buffer): void {
    try {
      const heard = this.#lines.take(chunk);
      if (heard === 'size') this.#fail(failure('ERR_HOST_ANSWER', 'it says too much at once'));
      if (heard !== 'alive') return;
      clearTimeout(this.#timer);
      this.#timer = this.#giveUpAfter(this.#hasSpoken ? this.#options.quietMs : LOGIN_TIMEOUT_MS);
    } catch (error) {
      this.#fail(failure('ERR_HOST_ANSWER', `its answer makes no sense: ${errorMessage(error)}`));
    }
  }

  #read(line: string): boolean {
    if (this.#isClosed || this.#failure !== null) return false;
    this.#hasSpoken = this.#state === 'begun';
    if (this.#hasSpoken) {
      this.#options.onLine(line);
      return true;
    }
    const word = this.#program.wordIn(line);
    if (word === null) this.#early = `${this.#early}${line}\n`.slice(-MAX_EARLY_LENGTH);
    else if (word === 'missing') this.#fail(notInstalled(this.#host));
    else if (word === 'directory') this.#fail(noProject(this.#host, this.#options.directory));
    else if (word === 'reached') this.#state = 'reached';
    else {
      this.#state = 'begun';
      this.#errors = ''; // shells have printed it
      this.#options.onBegin();
    }
    return true;
  }

  #untilEnd(): Promise<HostFailure | null> {
    return new Promise((resolve) => {
      let last: NodeJS.Timeout | undefined;
      const finish = () => {
        clearTimeout(this.#timer);
        clearTimeout(last);
        this.#ssh.stdout?.destroy();
        this.#ssh.stderr?.destroy();
        const result = { exitCode: this.#exitCode, output: '', errors: this.#errors, cut: null };
        this.isOver = this.#state === 'begun' && hasEndedThere(result);
        resolve(this.#isClosed ? this.#failure : (this.#failure ?? this.#whyEnded()));
      };
      this.#ssh.once('error', () => {
        this.#failure ??= noSSH();
        finish();
      });
      this.#ssh.once('exit', (code) => {
        this.#exitCode = code ?? 255;
        last = setTimeout(finish, LAST_TIMEOUT_MS);
      });
      this.#ssh.once('close', finish);
    });
  }

  /** Why ssh has ended by itself; null: gpu-owner there has ended well. */
  #whyEnded(): HostFailure | null {
    const exitCode = this.#exitCode ?? 255;
    const errors = this.#errors;
    if (this.#state === 'starting') {
      if (exitCode === NO_SSH && errors === '') return noSSH();
      return explain(this.#host, { exitCode, output: this.#early, errors, cut: null });
    }
    if (exitCode === 255)
      return failure(
        'ERR_HOST_UNREACHABLE',
        this.isOver ? 'gpu-owner was killed there' : brokenConnection(errors),
      );
    if (exitCode === 0) return null;
    const { code, message } = remoteError(errors, exitCode);
    return { code, message };
  }
}

function noProject({ name }: Host, directory: string): HostFailure {
  const message = `there is no directory ${sanitize(directory, 200)}, or you may not enter it. Make it there, or name another: --on ${name}:/DIR`;
  return failure('ERR_HOST_DIRECTORY', message);
}

function failure(code: HostErrorCode, message: string): HostFailure {
  return { code, message: sanitize(message, MAX_MESSAGE_LENGTH) };
}
