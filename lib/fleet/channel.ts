// A gpu-owner on another machine that speaks with this process for long, line by line, over the standard streams of one ssh.
import type { Host } from '../config/index.ts';
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

export interface ChannelOptions {
  /** The arguments of gpu-owner. */
  words: readonly string[];
  /** Where it runs: an absolute path. */
  directory: string;
  /** The connection ends if gpu-owner, which has spoken, says nothing for so long, in ms. */
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
  const { words, directory, quietMs, onBegin, onLine } = options;
  const program = new RemoteProgram();
  let state: 'starting' | 'reached' | 'begun' = 'starting';
  /** The failure that has ended it from here. */
  let own: HostFailure | null = null;
  let isClosed = false;
  let hasSpoken = false;
  let exitCode: number | null = null;
  let early = '';
  let errors = '';
  const ssh = startSSH(
    host.name,
    program.commandLine(host, words, directory),
    { flags: ['-T'], options: [UNATTENDED, OWN_CONNECTION], onParentEnd: 'kill -s KILL -- "-$$"' },
    // A session of its own: Ctrl-C reaches it through this process only.
    { detached: true, stdio: ['pipe', 'pipe', 'pipe', 'pipe'], env: { ...process.env, LC_ALL: 'C' } },
  );
  const end = (failure: HostFailure | null) => {
    own ??= failure;
    isClosed ||= failure === null;
    // The group of an ssh that has ended may be another one's by now.
    if (exitCode === null) killGroup(ssh.pid, 'SIGKILL');
    release(ssh);
  };
  const giveUpAfter = (ms: number) =>
    setTimeout(() => {
      end(failure('ERR_HOST_TIMEOUT', `nothing was heard of it for ${formatDuration(ms)}`));
    }, ms);
  let timer = giveUpAfter(LOGIN_TIMEOUT_MS);
  const read = (line: string): boolean => {
    if (isClosed || own !== null) return false;
    const word = state === 'begun' ? null : program.wordIn(line);
    hasSpoken = state === 'begun';
    if (hasSpoken) onLine(line);
    else if (word === null) early = `${early}${line}\n`.slice(-MAX_EARLY_LENGTH);
    else if (word === 'missing') end(notInstalled(host));
    else if (word === 'directory') end(noProject(host, directory));
    else if (word === 'reached') state = 'reached';
    else {
      state = 'begun';
      errors = ''; // shells have printed it
      onBegin();
    }
    return true;
  };
  const lines = new Lines(read);
  ssh.stdout?.on('data', (chunk: Buffer) => {
    try {
      const heard = lines.take(chunk);
      if (heard === 'size') end(failure('ERR_HOST_ANSWER', 'it says too much at once'));
      if (heard !== 'alive') return;
      clearTimeout(timer);
      timer = giveUpAfter(hasSpoken ? quietMs : LOGIN_TIMEOUT_MS);
    } catch (error) {
      end(failure('ERR_HOST_ANSWER', `its answer makes no sense: ${(error as Error).message}`));
    }
  });
  ssh.stderr?.on('data', (chunk: Buffer) => {
    errors = (errors + chunk.toString()).slice(-MAX_ERRORS_LENGTH);
  });
  const ended = new Promise<HostFailure | null>((resolve) => {
    let last: NodeJS.Timeout | undefined;
    const finish = () => {
      clearTimeout(timer);
      clearTimeout(last);
      ssh.stdout?.destroy();
      ssh.stderr?.destroy();
      if (own !== null || isClosed) return resolve(own);
      const code = exitCode ?? 255;
      const result = { exitCode: code, output: early, errors, cut: null };
      if (code === NO_SSH && state === 'starting' && errors === '') resolve(noSSH());
      else if (state === 'starting') resolve(explain(host, result));
      else if (code === 255) resolve(failure('ERR_HOST_UNREACHABLE', brokenConnection(errors)));
      else resolve(code === 0 ? null : remoteError(errors, code));
    };
    ssh.once('error', () => {
      own ??= noSSH();
      finish();
    });
    ssh.once('exit', (code) => {
      exitCode = code ?? 255;
      last = setTimeout(finish, LAST_TIMEOUT_MS);
    });
    ssh.once('close', finish);
  });
  return {
    send: (line) => {
      if (ssh.stdin?.writable) ssh.stdin.write(`${line}\n`);
    },
    close: () => end(null),
    ended,
  };
}

function noProject({ name }: Host, directory: string): HostFailure {
  const message = `there is no directory ${sanitize(directory, 200)}, or you may not enter it. Make it there, or name another: --on ${name}:/DIR`;
  return failure('ERR_HOST_DIRECTORY', message);
}

function failure(code: HostErrorCode, message: string): HostFailure {
  return { code, message: sanitize(message, MAX_MESSAGE_LENGTH) };
}
