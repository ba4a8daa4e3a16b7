import type { Place, Task, TaskCommand, TaskSpec, Values } from '../task/index.ts';
import { GPUOwnerError } from '../../errors.ts';

/** `active`: some attempt has it. `failed`: it has used up its starts, or left a result that can't be read. */
export type State = 'pending' | 'active' | 'completed' | 'failed' | 'cancelled';

export const STATES: readonly State[] = ['pending', 'active', 'completed', 'failed', 'cancelled'];

/** How often a task is started at most, give-backs not counted. */
export const MAX_STARTS = 3;
/** How long a task that was given back waits at most before it is given out again, in ms. */
export const MAX_DELAY_MS = 60_000;

/** Somebody who takes tasks. */
export interface WorkerInfo {
  /** For people, and in the name of the log: `gpu0`. */
  worker: string;
  host: string;
  pid: number;
  /** What it runs tasks on, e.g. `['GPU-…']`. */
  gpus: readonly string[];
}

/** A task in somebody's hands. All methods of the queue that end it take its token, also in another process, after a restart. */
export interface Attempt {
  token: string;
  task: Task;
  /** Which of its counted starts this is, from 1. */
  start: number;
  /**
   * Descriptors that are to stay open as long as any process of the attempt lives: the keeper gets them. The task isn't given
   * out again while they are. The engine closes its own when the attempt is ended.
   */
  descriptors: readonly number[];
  /**
   * Aborts when the task isn't this attempt's any longer (cancelled, lost): its command must be killed. The reason is an Error that
   * says why. Once the command is gone, `requeue` (which is rejected) closes the descriptors, so that the task can be had again.
   */
  signal: AbortSignal;
}

/** What is known of an attempt, living or ended. */
export interface AttemptInfo {
  token: string;
  taskId: string;
  taskName: string;
  taker: WorkerInfo;
  /** ms since the epoch. */
  since: number;
  ended: number | null;
  /** null: it lives. `lost`: its processes went without a word. */
  outcome: 'completed' | 'failed' | 'given-back' | 'lost' | 'cancelled' | null;
  /** A result was submitted: an empty one for a worker that wrote its row itself, where nobody can tell which of several it is. */
  submitted: boolean;
  error: string | null;
  /** The file that its output went to, and where in it that begins and ends, in bytes; null: unknown as yet. */
  log: { path: string; from: number; to: number | null } | null;
}

/** In the place of its PID, a worker that asks over TCP has this: none of its processes is known. */
export const NO_PID = 0;

/** Whether an attempt over TCP completed its task, and sent no result. */
export function lacksResult({ taker, outcome, submitted }: AttemptInfo): boolean {
  return taker.pid === NO_PID && outcome === 'completed' && !submitted;
}

/** A task with its fate, for lists. */
export interface TaskRow {
  task: Task;
  state: State;
  /** Counted starts so far. */
  starts: number;
  /** The last thing that went wrong; null: nothing. */
  error: string | null;
  /** ms since the epoch: when it was completed, failed or cancelled. */
  ended: number | null;
  /** Where the result of a completed one is from: a worker, or a row that was found in a table. */
  source: 'worker' | 'table' | null;
  /** Of a completed one: see {@link Completion}. */
  sequence: number | null;
}

/** Results that a worker over TCP didn't send. */
export interface WithoutResult {
  worker: string;
  host: string;
  tasks: number;
}

/** A completed task, in the order of completion. */
export interface Completed {
  /** Counts completions, from 1, and is never given twice; the cursor for the next call. */
  sequence: number;
  task: Task;
  source: 'worker' | 'table';
}

export interface Completion extends Completed {
  result: Values;
  /** The result can't be read, says this for people: `result` is empty then. */
  damage?: string;
}

/** So many bytes of tasks and results are in an answer at most, if it has more than one: on a slow network it must come in time. */
export const MAX_BYTES = 1024 * 1024;

export interface Failure {
  /** Shown to people: `exit code 1`, `killed by SIGKILL`, with the end of the log. */
  error: string;
  /** Whether another start may help: false for a result that can't be read. */
  retry: boolean;
}

/** Why no tasks are given out. */
export interface Pause {
  /** A person, or the workers after too many failures. */
  by: 'person' | 'failures';
  message: string;
  /** ms since the epoch. */
  since: number;
}

export interface Enqueued {
  added: number;
  /** Those it had already, in whatever state. */
  known: number;
  /** Of the known: those that have got one more place. */
  placed: number;
}

/** Which tasks: by id or name, or by state. */
export type Selection = { ids: readonly string[] } | { state: State };

export type Counts = Readonly<Record<State, number>>;

/** Who manages. */
export interface Manager {
  host: string;
  pid: number;
  /** When somebody else may, unless it gives a sign of life, in ms since the epoch. Absent: it is known to live. */
  until?: number;
}

export interface Management {
  release(): Promise<void>;
  readonly lost?: AbortSignal;
}

/**
 * The tasks of a project, and who has which. An engine keeps every promise below through the death of any process at any moment;
 * `test/experiments/queue/conformance.ts` has a test for each.
 *
 * - A task is given to one attempt at a time, and again only when nothing of the last one lives.
 * - Tasks come by priority of arrival, fresh ones before those that have failed already.
 * - What a method has resolved to is there after any crash.
 * - A token whose task isn't its own any longer is rejected: its result changes nothing.
 */
export interface Queue {
  /** As `--queue` has it: `sqlite:/path`, `redis://…` without password. */
  readonly url: string;

  /**
   * Adds the tasks that it doesn't have, and gives them their names; does nothing to those it has but adding new places. In
   * batches: after a crash, doing it again does the rest.
   * @param replaceCommands what to do with known tasks whose command is another: give it to those that are neither active nor
   *   completed, or refuse
   * @throws ERR_INVALID_ARGUMENT for equal parameters with different commands, with the first few of them: in the sweep whatever
   *   the options, else only if commands aren't to be replaced. Nothing of that batch is added.
   */
  enqueue(
    tasks: Iterable<TaskSpec> | AsyncIterable<TaskSpec>,
    options?: { replaceCommands?: boolean; signal?: AbortSignal },
  ): Promise<Enqueued>;

  /** Which of these are known, in their order: for plans. */
  lookUp(ids: readonly string[]): Promise<(TaskRow | null)[]>;

  /**
   * The next task, for somebody who runs it now; null: none can be had at the moment. Counts as a start. Attempts whose processes
   * are gone without a word are ended first.
   * @param lifetime of somebody who gives no sign of life: after so many ms the task may be given out again. Undefined: as long
   *   as this process, and whoever has the descriptors, lives.
   */
  take(taker: WorkerInfo, options?: { lifetime?: number }): Promise<Attempt | null>;
  /**
   * Ends attempts whose processes are gone without a word, or whose lifetime is over, as `take` does: for those who take nothing, but
   * want to know. Costs little where there is none.
   */
  endLost(): Promise<void>;
  /** Where its output goes; the place is noted as it becomes known. */
  setLog(token: string, log: { path: string; from: number; to: number | null }): Promise<void>;
  /** Keeps a result that came before the completion. false: rejected. */
  submit(token: string, result: Values): Promise<boolean>;
  /**
   * The task is done; the result is committed with it. Without a result, the one that was submitted counts.
   * @returns false: rejected, since the task isn't this attempt's any longer. An attempt whose lifetime is over still counts, if
   *   the task has no result yet. Saying the same again, because the answer was lost, is no rejection.
   */
  complete(token: string, result: Values | null): Promise<boolean>;
  /** @returns what became of the task; null: rejected */
  fail(token: string, failure: Failure): Promise<State | null>;
  /**
   * It wasn't the task's fault: the start doesn't count. @param delay ms before it is given out again, at most MAX_DELAY_MS
   * @returns false: rejected
   */
  requeue(token: string, why: string, delay?: number): Promise<boolean>;

  /**
   * Completes the tasks whose rows were found in a table, unless they are active, completed or retracted: thousands cost hardly more
   * than one. @returns of each, whether it did
   */
  importResults(rows: readonly { id: string; result: Values }[]): Promise<boolean[]>;

  /** Starts of failed and cancelled tasks begin anew; a completed one loses its result (see `retracted`). @returns their names */
  retry(selection: Selection): Promise<string[]>;
  /** Pending ones are not given out any more, of active ones the command is killed. @returns their names */
  cancel(selection: Selection | 'all'): Promise<string[]>;
  pause(by: Pause['by'], message: string): Promise<void>;
  resume(): Promise<void>;
  paused(): Promise<Pause | null>;

  counts(): Promise<Counts>;
  /**
   * When the first of the pending tasks that wait for their time may be given out, in ms since the epoch; null: none waits, or
   * there is another one to be had.
   */
  nextTime(): Promise<number | null>;
  /** In the order of arrival. `match`: a name, an id, or the beginning of an id. */
  tasks(which?: { state?: State; match?: string; limit?: number }): AsyncIterable<TaskRow>;
  /** Completed tasks whose last worker asked over TCP, and sent no result: how many, by worker. The most frequent first. */
  withoutResult(): Promise<WithoutResult[]>;
  /** Living attempts, or those of one task, oldest first. */
  attempts(which: 'living' | { taskId: string }): Promise<AttemptInfo[]>;
  /**
   * Completions behind the cursor, in order: at most `limit`, and fewer where they are large (see {@link MAX_BYTES}). Only when there is
   * none, there are no more.
   */
  completions(after: number, limit: number): Promise<Completion[]>;
  /** As `completions`, for those who don't need the results. */
  completed(after: number, limit: number): Promise<Completed[]>;
  /** Tasks that were completed, and then retried: their rows are to be taken out of the tables before anything is written to them. */
  retracted(): Promise<Task[]>;
  /** Their rows are out. */
  forgetRetracted(ids: readonly string[]): Promise<void>;

  /**
   * Resolves when something has changed since the last call of this process, or after so many ms. Costs next to nothing meanwhile.
   * @param since `changeCount` before somebody looked at the queue: what has been noticed behind that is news, whoever noticed it
   */
  changed(milliseconds: number, signal?: AbortSignal, since?: number): Promise<void>;
  /** How many changes this process has noticed. */
  readonly changeCount: number;

  /**
   * The one who writes the tables and looks after the rest. null: somebody else is; ends with the process at the latest.
   * @returns what gives it back. `lost` aborts when somebody else may manage by now: nothing is to be written any more. Only where the
   *   queue isn't on this machine.
   */
  manage(who: { host: string; pid: number }): Promise<Management | null>;
  /** Who manages; null: nobody. */
  manager(): Promise<Manager | null>;

  close(): Promise<void>;
}

export type { Place, Task, TaskCommand, TaskSpec };

/** The queue is not where it was opened. It helps nobody to go on with it, unless it is put back soon. */
export class QueueRemovedError extends GPUOwnerError {
  constructor(message: string) {
    super('ERR_QUEUE', message);
  }
}
