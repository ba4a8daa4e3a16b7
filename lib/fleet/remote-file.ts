import type { Host } from '../config/index.ts';
import { explain, lastLine, noSSH } from './failures.ts';
import type { HostFailure } from './host-failure.ts';
import { FilePart } from './request.ts';
import { type Heard, type OutputReader, runOverSSH } from './ssh.ts';

const TIMEOUT_MS = 30_000;
const MAX_TIMEOUT_MS = 2 ** 31 - 1;
/** ssh ends by itself where the host has gone. */
const ALIVE = ['ServerAliveInterval=10', 'ServerAliveCountMax=3'];

interface Part {
  /** The first byte, from 0. */
  from: number;
  /** How many bytes; null: to the end. */
  length: number | null;
  /** Goes on as the file grows, until the signal comes. */
  follows: boolean;
}

/** Reads a part of a file on a host. @returns why it can't be read; null: all was read, or the signal came */
export async function readFromHost(
  host: Host,
  path: string,
  { from, length, follows }: Part,
  onBytes: (bytes: Buffer) => void,
  signal?: AbortSignal,
): Promise<HostFailure | null> {
  const part = new FilePart();
  const reader: OutputReader = {
    text: '',
    take(chunk): Heard {
      const bytes = part.read(chunk);
      if (bytes.length > 0) onBytes(bytes);
      return 'alive';
    },
  };
  const commandLine = part.commandLine(path, from, length, follows);
  const timeoutMs = () => (follows ? MAX_TIMEOUT_MS : TIMEOUT_MS);
  const ended = await runOverSSH(host.name, commandLine, reader, { timeoutMs, options: ALIVE, signal });
  if (signal?.aborted) return null;
  if (ended.cut === 'no-ssh') return noSSH();
  if (ended.cut === 'time')
    return { code: 'ERR_HOST_TIMEOUT', message: `no answer within ${TIMEOUT_MS / 1000} s` };
  if (!part.hasBegun || ended.exitCode === 255) return explain(host, ended);
  const isRead = ended.exitCode === 0 && !/^tail: /m.test(ended.errors);
  return isRead ? null : { code: 'ERR_HOST_ANSWER', message: lastLine(ended.errors) };
}
