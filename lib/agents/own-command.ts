// Runs gpu-owner itself: what an agent asks for is what its user could type. A driver call that hangs holds up nothing else here.
import { spawn } from 'node:child_process';
import { asError } from '../errors.ts';
import { ownProgram, sanitize } from '../platform/index.ts';

/** For commands that look, or begin something. */
export const ANSWER_TIMEOUT_MS = 30_000;
const MAX_OUTPUT_BYTES = 32 * 1024 * 1024;
const MAX_MESSAGE_LINES = 40;

export interface Finished {
  exitCode: number | null;
  output: string;
  /** The message, in lines; '': none. */
  errors: string;
}

export interface OwnCommandOptions {
  timeoutMs: number;
  /** Ends it at once. */
  signal?: AbortSignal;
  directory?: string | undefined;
  env?: Readonly<Record<string, string>>;
}

/** The request of an agent can't be met: the message names cause and remedy. */
export class CommandFailure extends Error {}

/** Runs a command of gpu-owner to its end. @throws CommandFailure if it can't be started, or takes too long */
export function runOwn(words: readonly string[], options: OwnCommandOptions): Promise<Finished> {
  const { timeoutMs, signal, directory, env } = options;
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(new CommandFailure('cancelled'));
    const child = start(words, directory, env);
    const output: Buffer[] = [];
    const errors: Buffer[] = [];
    let bytes = 0;
    const collect = (into: Buffer[]) => (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes <= MAX_OUTPUT_BYTES) into.push(chunk);
    };
    child.stderr.on('data', collect(errors));
    const settle = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
    };
    const finish = (exitCode: number | null) => {
      settle();
      const text = (chunks: Buffer[]) => Buffer.concat(chunks).toString('utf8');
      resolve({ exitCode, output: text(output), errors: plainLines(text(errors)) });
    };
    const give = (message: string) => {
      child.kill('SIGKILL');
      // A process whose driver call hangs ends when the call returns: it isn't waited for.
      for (const stream of [child.stdout, child.stderr]) stream.destroy();
      child.unref();
      settle();
      reject(new CommandFailure(message));
    };
    child.stdout.on('data', collect(output));
    const abort = () => give('cancelled');
    const timer = setTimeout(
      () =>
        give(
          `gpu-owner ${words[0]} has not answered within ${timeoutMs / 1_000} s. A driver call may hang: run \`gpu-owner doctor\``,
        ),
      timeoutMs,
    );
    signal?.addEventListener('abort', abort);
    child.on('error', (error) => {
      settle();
      reject(notStarted(error, directory));
    });
    child.on('close', finish);
  });
}

function start(words: readonly string[], directory: string | undefined, env: OwnCommandOptions['env']) {
  try {
    const [program, ...args] = ownProgram(...words);
    return spawn(program, args, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...env },
      cwd: directory,
    });
  } catch (error) {
    throw notStarted(asError(error), directory);
  }
}

function notStarted(error: NodeJS.ErrnoException, directory?: string): CommandFailure {
  const { code, message } = error;
  if (code === 'E2BIG')
    return new CommandFailure(
      'the command and its environment are too long for this system: put them into a file',
    );
  if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'EACCES')
    return new CommandFailure(`the directory ${sanitize(directory ?? '.', 300)} can't be entered (${code})`);
  return new CommandFailure(`gpu-owner can't be started: ${sanitize(message, 300)}`);
}

/** The lines of a message, harmless, without the name of the program. */
function plainLines(text: string): string {
  const lines = text.split('\n').map((line) => sanitize(line.replace(/^gpu-owner: /, ''), 500));
  while (lines.at(-1)?.trim() === '') lines.pop();
  return lines.slice(0, MAX_MESSAGE_LINES).join('\n');
}

/** Runs a command that prints JSON. @throws CommandFailure with its message, if it fails */
export async function askOwn(words: readonly string[], options: OwnCommandOptions): Promise<unknown> {
  const [name = '', ...rest] = words;
  const { exitCode, output, errors } = await runOwn([name, '--json', ...rest], options);
  if (exitCode !== 0) throw new CommandFailure(errors || `gpu-owner ${name} failed (exit code ${exitCode})`);
  return parseOwn(name, output);
}

/** Reads the output of a command. @throws CommandFailure if it is no JSON */
export function parseOwn(name: string, output: string): unknown {
  try {
    return JSON.parse(output);
  } catch {
    throw new CommandFailure(`gpu-owner ${name} printed no JSON`); // nothing else fails there
  }
}
