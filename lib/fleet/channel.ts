// A gpu-owner on another machine that speaks with this process for long, line by line, over the standard streams of one ssh.
import type { Writable } from 'node:stream';
import type { Host } from '../config/index.ts';
import { errorMessage } from '../errors.ts';
import { failure, listen } from './fleet.ts';
import type { HostFailure } from './host-failure.ts';

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
  /**
   * Why the connection ended; null: gpu-owner ended with exit code 0, or the channel was closed. Never rejects. `isOver`: whether gpu-owner
   * there is known to have ended. Otherwise the connection alone has.
   */
  readonly ended: Promise<{ failure: HostFailure | null; isOver: boolean }>;
}

/** How long a login and the start of gpu-owner may take, in ms. */
const LOGIN_TIMEOUT_MS = 30_000;

/** Starts gpu-owner on a host. The connection ends with this process, however that ends. */
export function openChannel(
  host: Host,
  { words, directory, quietMs, onBegin, onLine }: ChannelOptions,
): Channel {
  const end = new AbortController();
  let stdin: Writable | null = null;
  let hasBegun = false;
  let hasSpoken = false;
  let wrong: HostFailure | null = null;
  const hear = (line: string) => {
    try {
      if (!hasBegun) onBegin();
      hasBegun = true;
      if (line === '') return;
      hasSpoken = true;
      onLine(line);
    } catch (error) {
      wrong = failure('ERR_HOST_ANSWER', `its answer makes no sense: ${errorMessage(error)}`);
      end.abort();
    }
  };
  const ended = listen(host, words, {
    ...{ directory, hear, signal: end.signal },
    timeoutMs: () => (hasSpoken ? quietMs : Math.max(LOGIN_TIMEOUT_MS, quietMs)),
    onStart: (input) => {
      stdin = input;
    },
  }).then(({ error, exitCode }) => {
    const isOver = error === null || exitCode !== null;
    if (end.signal.aborted || error === null) return { failure: wrong, isOver };
    const isKilled = exitCode !== null && exitCode > 128;
    return {
      failure: isKilled ? failure('ERR_HOST_UNREACHABLE', 'gpu-owner was killed there') : error,
      isOver,
    };
  });
  return {
    send: (line) => {
      if (stdin?.writable) stdin.write(`${line}\n`);
    },
    close: () => end.abort(),
    ended,
  };
}
