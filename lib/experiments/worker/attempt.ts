import { resolve } from 'node:path';
import type { Outcome, Supervised, WorkerClaim } from '../../jobs/index.ts';
import { hostName, sanitize, shellWords, systemError } from '../../platform/index.ts';
import { Unsafe } from '../project/index.ts';
import type { Attempt } from '../queue/index.ts';
import type { Task, TaskCommand, Values } from '../task/index.ts';
import { AttemptFiles } from './attempt-files.ts';
import { environmentFor, freePort } from './environment.ts';
import { AttemptLog } from './log.ts';
import type { WorkerOptions } from './options.ts';
import { isDiskFull, readResult } from './result.ts';

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
