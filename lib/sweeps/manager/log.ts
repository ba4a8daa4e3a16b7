import { closeSync, constants, openSync, writeSync } from 'node:fs';
import { errorReason, formatDuration, sanitize, timestamp } from '../../platform/index.ts';
import { refuseOtherThanFile } from '../project/index.ts';
import { type AttemptInfo, completionsAfter, type Queue, type WorkerInfo } from '../queue/index.ts';
import type { WorkerEvent } from '../worker/index.ts';

/** `experiment_manager.log`: a line per event, with its time, appended. A file that can't be written stops nothing, and lacks these lines. */
export class ManagerLog {
  readonly #path: string;
  readonly #tell: (message: string) => void;
  #file: number | null = null;
  #complained = false;

  /** @param path in the project's directory @param tell for people, once when lines can't be written */
  constructor(path: string, tell: (message: string) => void) {
    this.#path = path;
    this.#tell = tell;
  }

  write(message: string): void {
    try {
      this.#file ??= open(this.#path);
      writeSync(this.#file, `${timestamp()} ${sanitize(message, 2_000)}\n`);
      this.#complained = false;
    } catch (error) {
      this.close();
      if (this.#complained) return;
      this.#complained = true;
      this.#tell(`${this.#path} can't be written: ${errorReason(error)}. Lines are lost until it can be`);
    }
  }

  close(): void {
    if (this.#file !== null) closeSync(this.#file);
    this.#file = null;
  }
}

/** Opens the log. Never waits, as opening a FIFO would. */
function open(path: string): number {
  const { O_APPEND, O_CREAT, O_NOFOLLOW, O_NONBLOCK, O_WRONLY } = constants;
  refuseOtherThanFile(path);
  return openSync(path, O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_WRONLY, 0o666);
}

/** The line of the log about a worker's event; null: the event isn't logged. */
export function describeEvent(event: WorkerEvent): string | null {
  switch (event.type) {
    case 'assigned':
      return `Assigned task ${event.task.name} to ${event.worker}`;
    case 'completed':
      return `Task ${event.task.name} completed by ${event.worker}`;
    case 'failed': {
      const again = event.state === 'pending' ? ' (it will be started again)' : '';
      return `Task ${event.task.name} failed on ${event.worker}${again}: ${firstLine(event.error)}`;
    }
    case 'given-back': {
      const delay = event.delay > 0 ? `, to be started again in ${formatDuration(event.delay)}` : '';
      return `Task ${event.task.name} requeued by ${event.worker}${delay}: ${firstLine(event.why)}`;
    }
    case 'revoked':
      return `Task ${event.task.name} taken from ${event.worker}: ${firstLine(event.why)}`;
    case 'left-behind': {
      const what =
        event.count === 1 ? 'a process behind, which was' : `${event.count} processes behind, which were`;
      return `Task ${event.task.name} left ${what} ended: ${event.names.join(', ')}`;
    }
    case 'waiting':
      return event.text;
    case 'trouble':
      return `${event.worker ?? 'a worker'}: ${firstLine(event.message)}`;
    case 'released':
      return event.why === 'environment'
        ? `${event.worker} released its GPU: something is wrong with it`
        : null;
    default:
      return null;
  }
}

/** The line of the log about an attempt of another process: that it began, or how it ended. */
function describeAttempt(attempt: AttemptInfo, self: string): string {
  const { taskName, outcome, error } = attempt;
  const { name, host } = attempt.worker;
  const worker = host === self ? name : `${name} on ${host}`;
  const why = error === null ? '' : `: ${firstLine(error)}`;
  switch (outcome) {
    case null:
      return `Assigned task ${taskName} to ${worker}`;
    case 'completed':
      return `Task ${taskName} completed by ${worker}`;
    case 'failed':
      return `Task ${taskName} failed on ${worker}${why}`;
    case 'given-back':
      return `Task ${taskName} requeued by ${worker}${why}`;
    case 'cancelled':
      return `Task ${taskName} cancelled on ${worker}`;
    case 'lost':
      return `Task ${taskName} lost by ${worker}${why}`;
  }
}

/** The first line of an error. The others are details: the end of the log. */
export function firstLine(text: string): string {
  return text.split('\n')[0] as string;
}

/** Logs the attempts of other processes' workers, as the queue has them. Workers of this process tell themselves. */
export class AttemptEvents {
  readonly #queue: Queue;
  readonly #host: string;
  readonly #pid: number;
  readonly #report: (text: string) => void;
  /** Living attempts that were logged. */
  readonly #living = new Map<string, AttemptInfo>();
  /** Tasks whose completion was logged, until it is read from the queue. */
  readonly #completed = new Set<string>();
  #cursor = 0;

  constructor(
    { queue, host, pid }: { queue: Queue; host: string; pid: number },
    report: (text: string) => void,
  ) {
    this.#queue = queue;
    this.#host = host;
    this.#pid = pid;
    this.#report = report;
  }

  /** Skips everything before now. */
  async begin(): Promise<void> {
    this.#cursor = 0;
    for await (const { sequence } of completionsAfter(this.#queue, 0)) this.#cursor = sequence;
    for (const attempt of await this.#queue.attempts('living')) {
      if (!this.#isOwn(attempt.worker)) this.#living.set(attempt.token, attempt);
    }
  }

  #isOwn({ pid, host }: WorkerInfo): boolean {
    return pid === this.#pid && host === this.#host;
  }

  #log(attempt: AttemptInfo): void {
    this.#report(describeAttempt(attempt, this.#host));
  }

  /** Logs the news in the queue. */
  async update(): Promise<void> {
    const living = await this.#queue.attempts('living');
    const tokens = new Set(living.map(({ token }) => token));
    for (const attempt of living) {
      if (this.#isOwn(attempt.worker) || this.#living.has(attempt.token)) continue;
      this.#living.set(attempt.token, attempt);
      this.#log({ ...attempt, outcome: null });
    }
    for (const [token, { taskId }] of this.#living) {
      if (tokens.has(token)) continue;
      const ended = (await this.#queue.attempts({ taskId })).find((each) => each.token === token);
      // A lost one may be logged later.
      if (ended?.outcome === null) continue;
      this.#living.delete(token);
      if (ended?.outcome) {
        this.#log(ended);
        if (ended.outcome === 'completed') this.#completed.add(taskId);
      }
    }
    await this.#logCompletions();
  }

  /** Logs tasks that began and ended between two updates. */
  async #logCompletions(): Promise<void> {
    for await (const { sequence, task, source } of completionsAfter(this.#queue, this.#cursor)) {
      this.#cursor = sequence;
      if (this.#completed.delete(task.id) || source === 'table') continue;
      const attempts = await this.#queue.attempts({ taskId: task.id });
      const last = attempts.findLast(({ outcome }) => outcome === 'completed');
      if (last === undefined || this.#isOwn(last.worker)) continue;
      if (!this.#living.delete(last.token)) this.#log({ ...last, outcome: null });
      this.#log(last);
    }
  }
}
