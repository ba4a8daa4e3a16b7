import { type ChildProcess, spawn } from 'node:child_process';
import { killGroup, schema } from '../platform/index.ts';

interface Ended {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
  /** Why it could not be started; null: it was. */
  startError: string | null;
}

/** After its standard input was closed, and again after SIGTERM, in ms. */
const END_TIMEOUT_MS = 5_000;
/** After SIGKILL: a process that is stuck in the driver doesn't end. */
const KILL_TIMEOUT_MS = 2_000;
const ABANDON_TIMEOUT_MS = 1_000;
const MAX_OUTPUT = 1_000_000;

/** How a program is started. */
interface SubprocessOptions {
  env?: NodeJS.ProcessEnv;
  /** Default: Ctrl-C reaches only the process that has started it, which then ends all in order. */
  hasSession?: boolean;
  /** Told what it says on standard error, line by line. */
  onError?: (line: string) => void;
}

const living = new Set<Subprocess>();
let isStopping = false;

/** A program that is supervised line by line. The driver may hang, and with it each process that asks it. */
export class Subprocess {
  readonly pid: number;
  /** When it ended; never rejected. */
  readonly ended: Promise<Ended>;
  /** The end of the program's standard error. */
  errors = '';
  readonly #child: ChildProcess;
  readonly #lines: string[] = [];
  #waiting: (() => void) | null = null;
  #isOver = false;

  constructor(words: readonly string[], { env, hasSession = true, onError }: SubprocessOptions = {}) {
    if (isStopping) throw new Error('all programs are being ended');
    const [program = '', ...args] = words;
    const child = spawn(program, args, {
      env: env ?? process.env,
      detached: hasSession,
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    this.#child = child;
    this.pid = child.pid ?? -1;
    living.add(this);
    let stdout = '';
    let rest = '';
    let partOfLine = '';
    child.stdin?.on('error', () => {}); // the program has ended
    child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      stdout = (stdout + text).slice(0, MAX_OUTPUT);
      const lines = (rest + text).split('\n');
      rest = (lines.pop() ?? '').slice(0, MAX_OUTPUT);
      this.#lines.push(...lines);
      this.#waiting?.();
    });
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.errors = (this.errors + text).slice(-MAX_OUTPUT);
      const lines = (partOfLine + text).split('\n');
      partOfLine = lines.pop() ?? '';
      for (const line of lines) onError?.(line);
    });
    this.ended = new Promise((resolve) => {
      const end = (code: number | null, signal: NodeJS.Signals | null) => {
        this.#isOver = true;
        living.delete(this);
        this.#waiting?.();
        resolve({ code, signal, stdout, stderr: this.errors, startError });
      };
      let startError: string | null = null;
      child.once('error', (error) => {
        startError = error.message;
        this.errors += error.message;
        end(127, null);
      });
      child.once('close', end);
    });
  }

  /** The next line of its standard output; null: it has ended, or is silent for the timeout. */
  async line(timeoutMs: number): Promise<string | null> {
    const end = performance.now() + timeoutMs;
    for (;;) {
      // The program may have spoken while this process itself had no processor.
      if (performance.now() >= end) await new Promise((resolve) => setImmediate(resolve));
      const line = this.#lines.shift();
      if (line !== undefined) return line;
      const left = end - performance.now();
      if (this.#isOver || left <= 0) return null;
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left);
        this.#waiting = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      this.#waiting = null;
    }
  }

  /** Whether it has ended. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** Kills it, and waits a moment for its end. A process that is stuck in the driver doesn't end: it is left then. */
  async abandon(): Promise<void> {
    for (const stream of this.#child.stdio) stream?.destroy();
    this.#child.kill('SIGKILL');
    this.#child.unref();
    await within(this.ended, ABANDON_TIMEOUT_MS);
  }

  /** Sends a signal to it alone. */
  kill(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  /** Closes its standard input, and waits for its end; one that stays is killed with its session. */
  async stop(): Promise<void> {
    this.#child.stdin?.destroy();
    for (const [signal, milliseconds] of [
      [null, END_TIMEOUT_MS],
      ['SIGTERM', END_TIMEOUT_MS],
      ['SIGKILL', KILL_TIMEOUT_MS],
    ] as const) {
      if (signal !== null) this.#killGroup(signal);
      if (await within(this.ended, milliseconds)) return;
    }
    this.#child.unref();
  }

  #killGroup(signal: NodeJS.Signals): void {
    // Collected by now, its number could be another's.
    if (this.#isOver || this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    killGroup(this.#child.pid, signal);
  }
}

/** Runs a program to its end; one that takes too long is stopped. */
export async function runProgram(
  words: readonly string[],
  timeoutMs: number,
  env?: NodeJS.ProcessEnv,
): Promise<Ended> {
  const program = new Subprocess(words, env === undefined ? {} : { env });
  const timer = setTimeout(() => void program.stop(), timeoutMs);
  const ended = await program.ended;
  clearTimeout(timer);
  return ended;
}

/** Ends all programs that this process has started; it can start none after that. */
export async function stopPrograms(): Promise<void> {
  isStopping = true;
  await Promise.all([...living].map((program) => program.stop()));
}

/** @returns whether it was settled within the timeout */
export async function within(promise: Promise<unknown>, milliseconds: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), milliseconds);
  });
  const inTime = await Promise.race([promise.then(() => true), late]);
  clearTimeout(timer);
  return inTime;
}

/** A line of JSON of a program of ours. null: a library of the driver's prints as well. */
export function messageIn<Message extends object>(line: string): Message | null {
  return schema.readAs(schema.jsonOf(schema.object), line) as Message | null;
}
