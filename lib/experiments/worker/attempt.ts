import { resolve } from 'node:path';
import type { Outcome, Supervised, WorkerClaim } from '../../jobs/index.ts';
import { hostName, sanitize, shellWords, systemError } from '../../platform/index.ts';
import { Unsafe } from '../project/index.ts';
import type { Attempt } from '../queue/index.ts';
import { type Task, type TaskCommand, type Values, parse, Written } from '../task/index.ts';
import { AttemptFiles, AttemptLog } from './attempt-files.ts';
import type { WorkerOptions } from './worker.ts';
import { createServer } from 'node:net';
import { constants } from 'node:fs';
import { open, statfs } from 'node:fs/promises';

/** What an attempt came to. */
export type Verdict =
  | { kind: 'completed'; result: Values }
  | { kind: 'failed'; error: string; retry: boolean }
  /** The task is not to blame. `spoiled`: something is wrong with the GPUs. */
  | { kind: 'environment'; why: string; spoiled: boolean };

export interface Running {
  attempt: Attempt;
  claim: WorkerClaim;
  /** Of the worker. */
  name: string;
  project: WorkerOptions['project'];
  /** Between SIGTERM and SIGKILL when this process dies, in ms. */
  grace: number;
  onLog(log: { path: string; from: number; to: number | null }): void;
}

/** By convention of sysexits: what is missing may be there later. */
const EX_TEMPFAIL = 75;
const MOST_COMMAND = 200; // characters

/** The path of the log that an attempt's output goes to. */
export function logPath(project: WorkerOptions['project'], { places }: Task, worker: string): string {
  // Two machines that append to one file of a network file system overwrite each other.
  const host = project.host === undefined ? '' : `${project.host.replace(/[^A-Za-z0-9.-]/g, '_')}_`;
  return resolve(project.directory, places[0]?.outputDirectory ?? '.', `worker_${host}${worker}.log`);
}

/** One attempt at a task: its command, and what belongs to it, from start to end. */
export class AttemptRun {
  readonly #running: Running;
  #supervised: Supervised | null = null;
  #interrupted = false;
  #over = false;
  #files: AttemptFiles | null = null;
  #keepFiles = false;
  #seconds = 0;

  constructor(running: Running) {
    this.#running = running;
  }

  /** How long the command ran. */
  get seconds(): number {
    return this.#seconds;
  }

  get leftBehind(): ReturnType<Supervised['leftBehind']> {
    return this.#supervised?.leftBehind() ?? null;
  }

  /** Whether somebody wanted it to end before it had: then its verdict means nothing. */
  get interrupted(): boolean {
    return this.#interrupted;
  }

  /** Ends the command: SIGTERM, SIGKILL after so many ms. May be repeated to make that sooner. */
  interrupt(grace: number): void {
    if (this.#over) return;
    this.#interrupted = true;
    this.#supervised?.terminate(grace);
  }

  /** Never rejected. */
  async run(): Promise<Verdict> {
    const { attempt, name, project } = this.#running;
    if (wordsOf(attempt.task.command).length === 0) {
      const why =
        'the task has no command: it came without one, for workers that ask over TCP. Give it one: gpu-owner exp run -- COMMAND, or exp manager -- COMMAND';
      return { kind: 'environment', why, spoiled: false };
    }
    const path = logPath(project, attempt.task, name);
    let log: AttemptLog;
    let port: number;
    try {
      this.#files = AttemptFiles.make(project.state, attempt, name);
      [log, port] = await Promise.all([
        AttemptLog.open(path, project.directory, header(attempt, name)),
        freePort(),
      ]);
    } catch (error) {
      const { errno, message, path: where = path } = error as NodeJS.ErrnoException;
      const what = error instanceof Unsafe ? 'its output' : where;
      const why = `${what} can't be written: ${errno === undefined ? message : systemError(-errno)}`;
      return { kind: 'environment', why, spoiled: false };
    }
    try {
      return await this.#supervise(log, port);
    } catch (error) {
      return { kind: 'environment', why: (error as Error).message, spoiled: false };
    } finally {
      await log.close();
    }
  }

  /** To be called once the outcome is kept. */
  async cleanUp(): Promise<void> {
    if (this.#keepFiles) this.#files?.keep();
    else await this.#files?.remove();
  }

  async #supervise(log: AttemptLog, port: number): Promise<Verdict> {
    const { attempt, claim, project, grace } = this.#running;
    const { task } = attempt;
    const files = this.#files as AttemptFiles;
    const env = environmentFor({
      taskFile: files.task,
      resultFile: files.result,
      gpus: claim.environment,
      port,
    });
    const started = performance.now();
    // Whoever wanted it to end while all that was prepared has had to wait.
    if (!this.#interrupted) {
      this.#supervised = claim.run({
        words: wordsOf(task.command),
        env,
        directory: project.directory,
        output: log.descriptor,
        descriptors: [...attempt.descriptors, files.descriptor],
        title: `${task.name}: ${describeCommand(task.command)}`,
        grace,
      });
    }
    this.#running.onLog({ path: log.path, from: log.from, to: null });
    const outcome = (await this.#supervised?.ended) ?? { kind: 'lost', text: 'it was not started any more' };
    this.#over = true;
    this.#seconds = (performance.now() - started) / 1000;
    const words = describeOutcome(outcome, task.command);
    const to = await log.end(footer(attempt, words, this.#seconds, this.leftBehind));
    this.#running.onLog({ path: log.path, from: log.from, to });
    if (this.#interrupted) return { kind: 'environment', why: 'interrupted', spoiled: false };
    if (this.#supervised?.toldToEnd()) {
      const why = `somebody told all of its processes to end (SIGTERM); ${words}`;
      return { kind: 'environment', why, spoiled: false };
    }
    return this.#judge(outcome, words, log);
  }

  async #judge(outcome: Outcome, words: string, log: AttemptLog): Promise<Verdict> {
    if (outcome.kind === 'not-started') return { kind: 'environment', why: words, spoiled: false };
    if (outcome.kind === 'exited' && outcome.code === 0) return this.#readResult();
    const lines = await log.tail().catch(() => []);
    const error = withTail(words, lines);
    if (outcome.kind === 'exited' && outcome.code === EX_TEMPFAIL) {
      return { kind: 'environment', why: error, spoiled: false };
    }
    const evidence = await this.#running.claim.foreignUse();
    if (evidence !== null) return { kind: 'environment', why: `${evidence}; ${error}`, spoiled: true };
    return { kind: 'failed', error, retry: true };
  }

  async #readResult(): Promise<Verdict> {
    const files = this.#files as AttemptFiles;
    const result = await readResult(files.result);
    if (result === null) return { kind: 'completed', result: {} };
    if ('values' in result) return { kind: 'completed', result: result.values };
    // Programs may end well without having noticed that they couldn't write.
    if (await isDiskFull(files.result)) {
      const why = `the disk is full, and the result can't be read: ${result.unreadable}`;
      return { kind: 'environment', why, spoiled: false };
    }
    this.#keepFiles = true;
    return {
      kind: 'failed',
      error: `the result can't be read: ${result.unreadable}. It is kept in ${files.result}`,
      retry: false,
    };
  }
}

function wordsOf(command: TaskCommand): readonly string[] {
  return 'shell' in command ? ['sh', '-c', command.shell] : command.words;
}

function describeCommand(command: TaskCommand): string {
  return sanitize('shell' in command ? command.shell : shellWords(command.words), MOST_COMMAND);
}

function describeOutcome(outcome: Outcome, command: TaskCommand): string {
  switch (outcome.kind) {
    case 'exited':
      return `exit code ${outcome.code}`;
    case 'killed':
      return `killed by ${outcome.signal}`;
    case 'lost':
      return outcome.text;
    case 'not-started':
      return `${sanitize(wordsOf(command)[0] ?? '', 100)} can't be started: ${outcome.text}`;
  }
}

/** The last line says most, so it comes first; those above it follow. */
function withTail(words: string, lines: readonly string[]): string {
  const last = lines.at(-1);
  if (last === undefined) return words;
  const before =
    lines.length > 1 ? `\nThe log ends with:\n${lines.map((line) => `  ${line}`).join('\n')}` : '';
  return `${words}: ${last}${before}`;
}

function header({ task, start }: Attempt, worker: string): string {
  const again = start > 1 ? ` (start ${start})` : '';
  return `==> ${timestamp()} ${sanitize(task.name)}${again} on ${worker} (${hostName()}): ${describeCommand(task.command)}`;
}

function footer({ task }: Attempt, words: string, seconds: number, left: AttemptRun['leftBehind']): string {
  const leftover =
    left === null ? '' : `; ended ${left.count} left behind: ${sanitize(left.names.join(', '))}`;
  return `<== ${timestamp()} ${sanitize(task.name)}: ${sanitize(words)} after ${seconds.toFixed(1)} s${leftover}`;
}

/** Local time, as people have it on their clocks. */
function timestamp(): string {
  const now = new Date();
  const two = (value: number) => String(value).padStart(2, '0');
  const date = `${now.getFullYear()}-${two(now.getMonth() + 1)}-${two(now.getDate())}`;
  return `${date} ${two(now.getHours())}:${two(now.getMinutes())}:${two(now.getSeconds())}`;
}

/** What the command of an attempt finds beside its GPUs. */
export interface Given {
  /** Path of the JSON file that describes the task. */
  taskFile: string;
  /** Path where it may leave its result. */
  resultFile: string;
  /** What shows it its GPUs. */
  gpus: Readonly<Record<string, string>>;
  /** Where its processes may meet. */
  port: number;
}

/** The environment of a command: this process's own without passwords, and what is given to it. Some of that only where the user hasn't set it. */
export function environmentFor({ taskFile, resultFile, gpus, port }: Given): NodeJS.ProcessEnv {
  const { MASTER_ADDR, MASTER_PORT, PYTHONUNBUFFERED } = process.env;
  // Commands write their environment into logs and reports.
  const { GPU_OWNER_QUEUE_PASSWORD: _, GPU_OWNER_QUEUE: url, ...inherited } = process.env;
  const queue = url === undefined ? null : withoutSecret(url);
  return {
    ...inherited,
    ...(queue === null ? {} : { GPU_OWNER_QUEUE: queue }),
    ...gpus,
    GPU_OWNER_TASK: taskFile,
    GPU_OWNER_RESULT: resultFile,
    // Otherwise the log would come in large pieces, and not at all from a command that is killed.
    PYTHONUNBUFFERED: PYTHONUNBUFFERED ?? '1',
    // For frameworks that rendezvous there: two tasks at a time mustn't meet on the same default port.
    MASTER_ADDR: MASTER_ADDR ?? '127.0.0.1',
    MASTER_PORT: MASTER_PORT ?? String(port),
  };
}

/** null: where a password would be in it can't be told. */
function withoutSecret(url: string): string | null {
  if (!url.includes('@')) return url;
  try {
    const parsed = new URL(url);
    if (parsed.password === '') return url;
    parsed.password = '';
    return parsed.href;
  } catch {
    return null;
  }
}

/** PyTorch's own, for the case that no other can be had. */
const DEFAULT_PORT = 29_500;

/** A TCP port that nobody uses at the moment. Never rejected. */
export function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(DEFAULT_PORT));
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() =>
        resolve(typeof address === 'object' && address !== null ? address.port : DEFAULT_PORT),
      );
    });
  });
}

const MOST_BYTES = 1024 ** 2;
/** A disk with less is full: other writers have taken the rest, or soon will. */
const LEFT_AT_LEAST = 64 * 1024; // bytes

/** What a command left as its result. `unreadable` says why, for people. */
export type Result = { values: Values } | { unreadable: string } | null;

/** Reads the result that a command has written; null: none. */
export async function readResult(path: string): Promise<Result> {
  try {
    // Not blocking: it could be a pipe.
    const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
    try {
      const stat = await file.stat();
      if (!stat.isFile()) return { unreadable: 'it is no file' };
      if (stat.size > MOST_BYTES) {
        return { unreadable: `it has ${stat.size} bytes, and at most ${MOST_BYTES} (1 MiB) are allowed` };
      }
      return decode((await file.readFile()).subarray(0, MOST_BYTES + 1));
    } finally {
      await file.close();
    }
  } catch (error) {
    const { code, errno, message } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') return null;
    return { unreadable: errno === undefined ? message : systemError(-errno) };
  }
}

/** Whether next to nothing can be written there; false where that isn't known. */
export async function isDiskFull(path: string): Promise<boolean> {
  const { bavail, bsize } = await statfs(path).catch(() => ({ bavail: 1, bsize: LEFT_AT_LEAST }));
  return bavail * bsize < LEFT_AT_LEAST;
}

function decode(bytes: Uint8Array): Result {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return { unreadable: 'it is not UTF-8 text' };
  }
  if (text.trim() === '') return { unreadable: 'it is empty' };
  try {
    const value = parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Written)) {
      return { values: value as Values };
    }
    return {
      unreadable: `it is no JSON object ({"accuracy": 0.9}), but begins with ${sanitize(text.trim(), 40)}`,
    };
  } catch (error) {
    return { unreadable: `it is not JSON: ${sanitize((error as Error).message)}` };
  }
}
