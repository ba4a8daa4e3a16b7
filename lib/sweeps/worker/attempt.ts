import { constants } from 'node:os';
import { resolve } from 'node:path';
import { allowedTime } from '../../claims/index.ts';
import { asError, errorMessage, ifFailed } from '../../errors.ts';
import type { Outcome, Supervised, WorkerClaim } from '../../jobs/index.ts';
import {
  bootMilliseconds,
  errorReason,
  formatDuration,
  hostName,
  sanitize,
  shellWords,
  TIMEOUTS,
  timestamp,
} from '../../platform/index.ts';
import { STOPPED } from '../progress/index.ts';
import { type Project, UnsafePathError } from '../project/index.ts';
import type { Attempt, SearchRecord, WorkerQueue } from '../queue/index.ts';
import type { Task, TaskCommand, Values } from '../task/index.ts';
import { AttemptFiles, AttemptLog } from './attempt-files.ts';
import { isDiskFull, readResult } from './result-file.ts';
import { environmentFor, freePort } from './task-environment.ts';
import { TrialProgress, type TrialValues } from './trial-progress.ts';
import { WandbRun } from './wandb-run.ts';

/** The end of an attempt, as its worker judges it. */
export type AttemptResult =
  | { kind: 'completed'; result: Values }
  | { kind: 'failed'; error: string; retry: boolean }
  /** The task is not to blame. `gpuFault`: something is wrong with the GPUs. */
  | { kind: 'environment'; why: string; gpuFault: boolean };

export interface AttemptContext {
  attempt: Attempt;
  claim: WorkerClaim;
  /** The worker's name. */
  name: string;
  project: Project;
  /** Between SIGTERM and SIGKILL when this process dies, in ms. */
  grace: number;
  onLog(log: { path: string; from: number; to: number | null }): void;
  /** The search whose trial the task is; null: it is none. */
  search: SearchRecord | null;
  queue: WorkerQueue;
}

/** The exit code for a temporary failure in sysexits.h. */
const EX_TEMPFAIL = 75;
const MAX_COMMAND_LENGTH = 200;
const { E2BIG, EACCES, ELOOP, ENOENT, ENOEXEC, ENOTDIR } = constants.errno;
/** Exit codes of shells for a command that can't be executed, and for one that isn't found. */
const NOT_FOUND: ReadonlySet<number> = new Set([126, 127]);
/** Errors of a start that only a person can correct. */
const FINAL_ERRORS: ReadonlySet<number> = new Set([E2BIG, EACCES, ELOOP, ENOENT, ENOEXEC, ENOTDIR]);

/** The path of the log that an attempt's output goes to. */
export function logPath(project: Project, task: Task, worker: string): string {
  // Two machines that append to one file of a network file system overwrite each other.
  const host = project.host === undefined ? '' : `${project.host.replace(/[^A-Za-z0-9.-]/g, '_')}_`;
  return resolve(
    project.directory,
    task.destinations[0]?.outputDirectory ?? '.',
    `worker_${host}${worker}.log`,
  );
}

/** One attempt at a task: its command, and what belongs to it, from start to end. */
export class AttemptRun {
  readonly #context: AttemptContext;
  #supervised: Supervised | null = null;
  #interrupted = false;
  #givesWay = false;
  #over = false;
  /** The step at which the trial was stopped early; null: it wasn't. */
  #stoppedAt: number | null = null;
  #progress: TrialProgress | null = null;
  #files: AttemptFiles | null = null;
  #keepFiles = false;
  #seconds = 0;
  #hasStarted = false;

  constructor(context: AttemptContext) {
    this.#context = context;
  }

  /** How long the command ran. */
  get seconds(): number {
    return this.#seconds;
  }

  /** Whether its command ran. */
  get hasStarted(): boolean {
    return this.#hasStarted;
  }

  get leftBehind(): Supervised['leftBehind'] {
    return this.#supervised?.leftBehind ?? null;
  }

  /** Whether it was interrupted before it ended: then its result means nothing. Not if it was done when it gave way. */
  get interrupted(): boolean {
    return this.#interrupted;
  }

  /** Ends the command: SIGTERM, SIGKILL after a grace in ms. May be repeated to make that sooner. */
  interrupt(grace: number): void {
    if (this.#over) return;
    this.#interrupted ||= this.#stoppedAt === null;
    this.#supervised?.terminate(grace);
  }

  /** As {@link interrupt}, but a command that ends with exit code 0 meanwhile is done. */
  giveWay(grace: number): void {
    if (this.#over) return;
    this.#givesWay = true;
    this.#supervised?.terminate(grace);
  }

  /** Never rejects. */
  async run(): Promise<AttemptResult> {
    const { attempt, name, project } = this.#context;
    if (commandWords(attempt.task.command).length === 0) {
      const why =
        'the task has no command: it was added for workers that ask over TCP. To add one: gpu-owner exp run -- COMMAND, or exp manager -- COMMAND';
      return { kind: 'environment', why, gpuFault: false };
    }
    const path = logPath(project, attempt.task, name);
    let log: AttemptLog;
    let port: number;
    try {
      this.#files = AttemptFiles.make(project.state, attempt, name);
      [log, port] = await Promise.all([
        AttemptLog.open(path, project.directory, header(attempt, name, project)),
        freePort(),
      ]);
    } catch (error) {
      const { path: where = path } = asError(error);
      const what = error instanceof UnsafePathError ? 'its output' : where;
      const why = `${what} can't be written: ${errorReason(error)}`;
      return { kind: 'environment', why, gpuFault: false };
    }
    try {
      return await this.#supervise(log, port);
    } catch (error) {
      return { kind: 'environment', why: errorMessage(error), gpuFault: false };
    } finally {
      await log.close();
    }
  }

  /** To be called once the outcome is kept. */
  async cleanUp(): Promise<void> {
    if (this.#keepFiles) this.#files?.keep();
    else await this.#files?.remove();
  }

  async #supervise(log: AttemptLog, port: number): Promise<AttemptResult> {
    const { attempt, claim, project, grace } = this.#context;
    const { task } = attempt;
    const files = this.#files as AttemptFiles;
    const started = performance.now();
    const limitMs = allowedTime(null);
    const limitAt = limitMs === null ? Number.POSITIVE_INFINITY : bootMilliseconds() + limitMs;
    const limit = limitMs === null ? null : { at: limitAt, grace: TIMEOUTS.grace };
    // The attempt may have been interrupted meanwhile.
    if (!this.#interrupted && !this.#givesWay) {
      this.#supervised = claim.run({
        words: commandWords(task.command),
        env: environmentFor(files, claim.environment, port),
        directory: project.directory,
        output: log.descriptor,
        descriptors: [...attempt.descriptors, files.descriptor],
        title: `${task.name}: ${describeCommand(task.command)}`,
        grace,
        deadline: attempt.deadline === null || attempt.deadline.at > limitAt ? limit : attempt.deadline,
      });
      const supervised = this.#supervised;
      if (attempt.deadline !== null)
        attempt.deadline.onMoved = (at) => supervised.moveDeadline(Math.min(at, limitAt));
    }
    this.#context.onLog({ path: log.path, from: log.from, to: null });
    this.#watch();
    const outcome = (await this.#supervised?.ended) ?? {
      kind: 'lost',
      text: 'the worker ended before it was started',
    };
    this.#over = true;
    this.#hasStarted = this.#supervised !== null && outcome.kind !== 'not-started';
    this.#seconds = (performance.now() - started) / 1000;
    const words = describeOutcome(outcome, task.command);
    const to = await log.end(footer(attempt, words, this.#seconds, this.leftBehind));
    this.#context.onLog({ path: log.path, from: log.from, to });
    const values = (await this.#progress?.end()) ?? { reported: {}, logged: {} };
    if (this.#stoppedAt !== null) return this.#readStopped(values, this.#stoppedAt);
    const isDone = outcome.kind === 'exited' && outcome.code === 0;
    if (this.#interrupted || (this.#givesWay && !isDone)) return this.#interruption();
    if (this.#supervised?.hasExpired) {
      if (limitMs !== null && bootMilliseconds() >= limitAt) {
        const error = `the time limit of ${formatDuration(limitMs)} is over (limits.for in the configuration)`;
        return { kind: 'failed', error, retry: false };
      }
      const why = 'the worker did not renew its lock in time, and the task may be given to others';
      return { kind: 'environment', why, gpuFault: false };
    }
    if (this.#supervised?.wasToldToEnd) {
      const why = `another process sent SIGTERM to all its processes; ${words}`;
      return { kind: 'environment', why, gpuFault: false };
    }
    return this.#judge(outcome, words, log, values);
  }

  async #judge(
    outcome: Outcome,
    words: string,
    log: AttemptLog,
    values: TrialValues,
  ): Promise<AttemptResult> {
    const { project } = this.#context;
    if (outcome.kind === 'not-started') {
      // Another machine may have the program; on this one, the next try ends in the same way.
      const isFinal = !outcome.ofKeeper && FINAL_ERRORS.has(outcome.errno) && project.host === undefined;
      if (isFinal) return { kind: 'failed', error: words, retry: false };
      return { kind: 'environment', why: words, gpuFault: false };
    }
    if (outcome.kind === 'exited' && outcome.code === 0) return this.#readResult(values);
    const lines = await log.tail().catch(ifFailed([]));
    const error = withTail(words, lines);
    if (outcome.kind === 'exited' && outcome.code === EX_TEMPFAIL) {
      return { kind: 'environment', why: error, gpuFault: false };
    }
    const evidence = await this.#context.claim.foreignUse();
    if (evidence !== null) return { kind: 'environment', why: `${evidence}; ${error}`, gpuFault: true };
    // A shell, or env, has found no program, or one that isn't executable.
    const isFinal = outcome.kind === 'exited' && NOT_FOUND.has(outcome.code) && project.host === undefined;
    return { kind: 'failed', error, retry: !isFinal };
  }

  #interruption(): AttemptResult {
    this.#interrupted = true;
    return { kind: 'environment', why: 'interrupted', gpuFault: false };
  }

  /** Stops a trial early if it isn't worth going on, and reads what programs of W&B log. */
  #watch(): void {
    const { search, queue, attempt, grace, project } = this.#context;
    if (this.#supervised === null) return;
    const stop = (step: number) => {
      if (this.#over || this.#interrupted || this.#givesWay) return;
      this.#stoppedAt = step;
      this.#supervised?.terminate(grace);
    };
    const { progress, task } = this.#files as AttemptFiles;
    const wandb = WandbRun.of(attempt.task.command, task, project.directory);
    if (search === null && wandb === null) return;
    this.#progress = new TrialProgress({
      queue,
      search,
      id: attempt.task.id,
      progress,
      wandb,
      stop,
    });
  }

  /** The row of a trial that was stopped early has its last values. */
  async #readStopped({ reported, logged }: TrialValues, step: number): Promise<AttemptResult> {
    const result = await readResult((this.#files as AttemptFiles).result);
    const values = result !== null && 'values' in result ? result.values : {};
    return { kind: 'completed', result: { ...reported, ...logged, ...values, [STOPPED]: step } };
  }

  async #readResult({ reported, logged }: TrialValues): Promise<AttemptResult> {
    const files = this.#files as AttemptFiles;
    const result = await readResult(files.result);
    // The value that was reported last, for a result without the metric.
    const name = this.#context.search?.metric?.name;
    const value = name === undefined ? undefined : reported[name];
    const metric = name === undefined || value === undefined ? {} : { [name]: value };
    if (result === null) return { kind: 'completed', result: { ...metric, ...logged } };
    if ('values' in result) return { kind: 'completed', result: { ...metric, ...result.values } };
    // The command may have been writing its result when it was told to end.
    if (this.#givesWay) return this.#interruption();
    // Programs may end well without having noticed that they couldn't write.
    if (await isDiskFull(files.result)) {
      const why = `the disk is full, and the result can't be read: ${result.unreadable}`;
      return { kind: 'environment', why, gpuFault: false };
    }
    this.#keepFiles = true;
    return {
      kind: 'failed',
      error: `the result can't be read: ${result.unreadable}. It is kept in ${files.result}`,
      retry: false,
    };
  }
}

function commandWords(command: TaskCommand): readonly string[] {
  return 'shell' in command ? ['sh', '-c', command.shell] : command.words;
}

function describeCommand(command: TaskCommand): string {
  return sanitize('shell' in command ? command.shell : shellWords(command.words), MAX_COMMAND_LENGTH);
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
      return `${sanitize(commandWords(command)[0], 100)} can't be started: ${outcome.text}`;
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

function header({ task, start }: Attempt, worker: string, project: Project): string {
  const again = start > 1 ? ` (start ${start})` : '';
  return `==> ${timestamp()} ${sanitize(task.name)}${again} on ${worker} (${project.host ?? hostName()}): ${describeCommand(task.command)}`;
}

function footer({ task }: Attempt, words: string, seconds: number, left: AttemptRun['leftBehind']): string {
  const leftover =
    left === null ? '' : `; ended ${left.count} left behind: ${sanitize(left.names.join(', '))}`;
  return `<== ${timestamp()} ${sanitize(task.name)}: ${sanitize(words)} after ${seconds.toFixed(1)} s${leftover}`;
}
