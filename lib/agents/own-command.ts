// Runs gpu-owner itself: what an agent asks for is what its user could type. A driver call that hangs holds up nothing else here.
import { spawn } from 'node:child_process';
import type { Readable } from 'node:stream';
import { errorMessage } from '../errors.ts';
import { ownProgram, sanitize } from '../platform/index.ts';

/** For commands that look, or begin something. */
const ANSWER_TIMEOUT_MS = 30_000;
/** More than any JSON. Of a job's output, the end is wanted: with progress bars, a few lines may be larger. */
const MAX_OUTPUT_BYTES = 32 * 1024 * 1024;
const MAX_MESSAGE_LINES = 40;

export interface Finished {
  exitCode: number | null;
  output: string;
  /** The message, in lines; '': none. */
  errors: string;
}

export interface OwnCommandOptions {
  timeoutMs?: number;
  /** Ends it at once. */
  signal?: AbortSignal;
  directory?: string | undefined;
  env?: Readonly<Record<string, string>>;
}

/** The request of an agent can't be met: the message names cause and remedy. */
export class CommandFailure extends Error {}

/** Runs a command of gpu-owner to its end. @throws CommandFailure if it can't be started, or takes too long */
export async function runOwn(words: readonly string[], options: OwnCommandOptions = {}): Promise<Finished> {
  const { timeoutMs = ANSWER_TIMEOUT_MS, signal, directory, env } = options;
  // A process whose driver call hangs ends when the call returns: an abort doesn't wait for it.
  const timeout = AbortSignal.timeout(timeoutMs);
  const settings = {
    cwd: directory,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'] as ['ignore', 'pipe', 'pipe'],
    killSignal: 'SIGKILL' as const,
    signal: AbortSignal.any(signal === undefined ? [timeout] : [signal, timeout]),
  };
  try {
    return await new Promise((resolve, reject) => {
      const [program, ...args] = ownProgram(...words);
      const child = spawn(program, args, settings);
      const [output, errors] = [endOf(child.stdout), endOf(child.stderr)];
      child.once('error', reject);
      child.once('close', (exitCode) =>
        resolve({ exitCode, output: output(), errors: plainLines(errors()) }),
      );
    });
  } catch (error) {
    if (signal?.aborted) throw new CommandFailure('cancelled');
    if (timeout.aborted)
      throw new CommandFailure(
        `gpu-owner ${words[0]} has not answered within ${timeoutMs / 1_000} s. A driver call may hang: run \`gpu-owner doctor\``,
      );
    throw new CommandFailure(
      `gpu-owner can't be run in ${sanitize(directory ?? '.', 300)}: ${sanitize(errorMessage(error), 300)}`,
    );
  }
}

/** Collects the end of a stream. @returns what it is so far */
function endOf(stream: Readable): () => string {
  const chunks: Buffer[] = [];
  let size = 0;
  stream.on('data', (chunk: Buffer) => {
    chunks.push(chunk);
    size += chunk.length;
    while (size > MAX_OUTPUT_BYTES) size -= chunks.shift()?.length ?? size;
  });
  return () => Buffer.concat(chunks).toString();
}

/** The lines of a message, harmless, without the name of the program. */
function plainLines(text: string): string {
  const lines = text
    .trimEnd()
    .split('\n')
    .map((line) => sanitize(line.replace(/^gpu-owner: /, ''), 500));
  return lines.slice(0, MAX_MESSAGE_LINES).join('\n');
}

/** Reads what a command with --json prints. @throws CommandFailure with its message, if it printed nothing else */
export async function askOwn<T>(name: string, ...words: string[]): Promise<T> {
  const { exitCode, output, errors } = await runOwn([name, '--json', ...words]);
  if (output === '') throw new CommandFailure(errors || `gpu-owner ${name} failed (exit code ${exitCode})`);
  return JSON.parse(output) as T;
}
