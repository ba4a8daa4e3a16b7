import { GPUOwnerError } from '../../errors.ts';
import { sanitize } from '../../platform/index.ts';
import type { Destination, Task, TaskCommand, TaskSpec, Values } from '../task/index.ts';

/** `active`: some attempt has it. `failed`: it has used up its starts, or left a result that can't be read. */
export type State = 'pending' | 'active' | 'completed' | 'failed' | 'cancelled';

export const STATES: readonly State[] = ['pending', 'active', 'completed', 'failed', 'cancelled'];

/** How often a task is started again after failures and lost workers. Starts that were requeued don't count. */
export const DEFAULT_RETRIES = 2;
/** The longest delay before a requeued task is given out again. */
export const MAX_DELAY_MS = 60_000;

/** A process that takes tasks. */
export interface WorkerInfo {
  /** For people and for its log: `gpu0`. */
  name: string;
  host: string;
  pid: number;
  /** UUIDs of the GPUs on which it runs tasks. */
  gpus: readonly string[];
}

/** One start of a task by one worker. The methods that end it take its token, also in another process after a restart. */
export interface Attempt {
  token: string;
  task: Task;
  /** Which of its counted starts this is, from 1. */
  start: number;
  /**
   * Descriptors that must stay open while any process of the attempt lives: the keeper gets them. While they are open, the task isn't
   * given out again. The engine closes its own copies when the attempt ends.
   */
  descriptors: readonly number[];
  /**
   * Aborts when the task isn't this attempt's any longer (cancelled, lost): its command must be killed. The reason is an Error that
   * says why. Once the command is gone, `requeue` (which is rejected) closes the descriptors, so that the task can be had again.
   */
  signal: AbortSignal;
  /** Whether the task is started again only when a person says. */
  isOnce: boolean;
  /** For what ends the command although this process is stopped. null: the task is the attempt's as long as anything of it lives. */
  deadline: Deadline | null;
}

/** The time when the command of an attempt must end, unless the queue hears of its worker before. */
export interface Deadline {
  /** ms since boot, on a clock that goes on while the machine sleeps. */
  readonly at: number;
  /** How long the command may take to end then, in ms: others may start the task after that. */
  readonly grace: number;
  /** Gets each later time, while the queue hears of the worker. */
  onMoved: ((at: number) => void) | null;
}

/** An attempt, living or ended, as the queue shows it. */
export interface AttemptInfo {
  token: string;
  taskId: string;
  taskName: string;
  worker: WorkerInfo;
  /** ms since the epoch. */
  since: number;
  ended: number | null;
  /** null: it lives. `lost`: its processes went without a word. */
  outcome: 'completed' | 'failed' | 'given-back' | 'lost' | 'cancelled' | null;
  error: string | null;
  /** The file that its output went to, and where in it that begins and ends, in bytes; null: unknown as yet. */
  log: { path: string; from: number; to: number | null } | null;
}

/** The PID of workers that ask over TCP: their processes aren't known. */
export const NO_PID = 0;

/** A task with its state, for lists. */
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
  /** The place in the order of completion: see {@link Completion}. null: it isn't completed. */
  sequence: number | null;
}

/** A completed task, in the order of completion. */
export interface Completion {
  /** Counts completions, from 1, and is never given twice; the cursor for the next call. */
  sequence: number;
  task: Task;
  source: 'worker' | 'table';
  result: Values;
}

/** The most bytes of tasks and results in an answer with more than one: on a slow network it must arrive in time. */
export const MAX_BYTES = 1024 * 1024;

export interface TaskFailure {
  /** Shown to people: `exit code 1`, `killed by SIGKILL`, with the end of the log. */
  error: string;
  /** Whether another start may help: false for a result that can't be read. */
  retry: boolean;
}

/** The reason why no tasks are given out. */
export interface Pause {
  /** A person, or the workers after too many failures. */
  by: 'person' | 'failures';
  message: string;
  /** ms since the epoch. */
  since: number;
}

export interface Enqueued {
  added: number;
  /** Tasks that the queue had already, in any state. */
  known: number;
  /** Known tasks that have got one more destination. */
  placed: number;
  /** Known tasks that have got another command, and the ids of those of them that have failed. */
  replaced: number;
  failed: string[];
  /** Active and completed tasks, which keep their command although another one came. */
  unreplaced: number;
}

/** A search over the tasks of a phase, for those who show or stop them. */
export interface SearchRecord {
  phase: string;
  /** How many tasks there will be. */
  trials: number;
  /** null: results aren't compared. */
  metric: { name: string; goal: 'minimize' | 'maximize' } | null;
  /** Which trials are stopped early; null: none. */
  stopping: { rungs: readonly number[]; eta: number; strict: boolean } | null;
  /** The seed by which its trials are chosen; null: its tasks are known by their parameters. */
  seed: number | null;
  /** Tasks of the phase that aren't its trials, by their ids: those outside its space or of another seed, and that seed. */
  left: Readonly<Record<string, number | null>>;
  /** Whether all its trials are tasks. */
  isOver: boolean;
}

/** The value that a trial has reached at a step. */
export interface StepValue {
  phase: string;
  /** The task's id. */
  id: string;
  step: number;
  value: number;
}

/** Selects tasks by id or name, or by state. */
export type Selection = { ids: readonly string[] } | { state: 'failed' | 'cancelled' | 'completed' };

export type Counts = Readonly<Record<State, number>>;

/** The process that writes the tables. */
export interface ManagerInfo {
  host: string;
  pid: number;
  /** When its leadership expires unless it is renewed, in ms since the epoch. Absent: the process is known to live. */
  until?: number;
}

export interface Management {
  release(): Promise<void>;
  readonly lost?: AbortSignal;
}

/**
 * The tasks of a project and their attempts. An engine keeps every promise below even if any process dies at any moment.
 * `test/sweeps/queue/contract/` tests each promise. Any number of processes open the same URL.
 *
 * - A task is given to one attempt at a time, and again only when nothing of the last one lives.
 * - Tasks come by priority of arrival, fresh ones before those that have failed already.
 * - A change is durable once its method has resolved.
 * - A token whose task isn't its own any longer is rejected: its result changes nothing.
 */
export interface Queue {
  /** The URL without password: `sqlite:/path`, `redis://…`. */
  readonly url: string;

  /**
   * Adds new tasks and names them. Known tasks get new destinations, and the new command unless they are active or completed.
   * Works in batches: after a crash, doing it again does the rest.
   * @throws ERR_INVALID_ARGUMENT for equal parameters with different commands among these tasks. Nothing of that batch is added.
   */
  enqueue(
    tasks: Iterable<TaskSpec> | AsyncIterable<TaskSpec>,
    options?: { signal?: AbortSignal },
  ): Promise<Enqueued>;

  /** Finds tasks by id, in the order of the ids; null: unknown. */
  lookUp(ids: readonly string[]): Promise<(TaskRow | null)[]>;

  /**
   * Gives out the next task, and counts a start; null: none can be had at the moment. Lost attempts are ended first.
   * @param lifetime for workers without a heartbeat: ms after which the task may be given out again. Undefined: it is the attempt's while
   *   this process or any process with the descriptors lives.
   * @param outlives for commands on other machines, for which this process answers: the ms after the death of this process in which the task
   *   isn't given out. Only queues that aren't on a server have this, see `prolong`.
   */
  take(worker: WorkerInfo, options?: { lifetime?: number; outlives?: number }): Promise<Attempt | null>;
  /** Counts `outlives` of attempts from now on. Absent: workers of other machines use the queue themselves. */
  prolong?(tokens: readonly string[], outlives: number): Promise<void>;
  /**
   * Ends lost attempts as `take` does: those whose processes have ended silently, or whose lifetime is over. Costs little if there are none.
   */
  endLost(): Promise<void>;
  /** Records where the output of an attempt is. */
  setLog(token: string, log: { path: string; from: number; to: number | null }): Promise<void>;
  /**
   * Completes the task together with its result; null: an empty one.
   * @returns false: rejected, since the task isn't this attempt's any longer. Repeating a completion because the answer was lost is no
   *   rejection.
   */
  complete(token: string, result: Values | null): Promise<boolean>;
  /** Counts a failed start. @returns the new state of the task; null: rejected */
  fail(token: string, failure: TaskFailure): Promise<State | null>;
  /**
   * Returns a task that isn't to blame: the start doesn't count.
   * @param delay ms before it is given out again, at most MAX_DELAY_MS @returns false: rejected
   */
  requeue(token: string, why: string, delay?: number): Promise<boolean>;

  /**
   * Completes tasks whose rows were found in a table, unless they are active, completed or retracted.
   * @returns for each, whether it was completed
   */
  importResults(rows: readonly { id: string; result: Values }[]): Promise<boolean[]>;

  /** Resets failed, cancelled and completed tasks to pending. Completed ones lose their results: see `retracted`. @returns their names */
  retry(selection: Selection): Promise<string[]>;
  /** Cancels pending and active tasks. Commands of active ones are killed. @returns their names */
  cancel(selection: { ids: readonly string[] } | 'all'): Promise<string[]>;
  pause(by: Pause['by'], message: string): Promise<void>;
  resume(): Promise<void>;
  paused(): Promise<Pause | null>;

  /** Keeps how many GPUs each task of the list needs. */
  setGPUsPerTask(count: number): Promise<void>;
  /** 1 where nothing was said. */
  gpusPerTask(): Promise<number>;

  /** Keeps what a search is, instead of the one before. */
  setSearch(search: SearchRecord): Promise<void>;
  /** Reads the last search; null: there was none. */
  search(): Promise<SearchRecord | null>;
  /** Keeps the value of a trial at a step, instead of an earlier one. @returns those of the other trials of the phase */
  report(value: StepValue): Promise<number[]>;

  counts(): Promise<Counts>;
  /** The time when the first delayed task may be given out, in ms since the epoch; null: none is delayed, or another task can be had now. */
  nextTime(): Promise<number | null>;
  /** Lists tasks in the order of arrival. `match`: a name, an id, or the beginning of an id. */
  tasks(which?: { state?: State; match?: string }): AsyncIterable<TaskRow>;
  /** Lists living attempts, or all attempts of a task, oldest first. */
  attempts(which: 'living' | { taskId: string }): Promise<AttemptInfo[]>;
  /**
   * Lists completions behind the cursor in order, at most `limit`, and fewer if they are large: see {@link MAX_BYTES}. An empty list means
   * that there are no more.
   */
  completions(after: number, limit: number): Promise<Completion[]>;
  /** Lists tasks that were completed and then retried. Their rows must leave the tables before anything is written there. */
  retracted(): Promise<Task[]>;
  /** Forgets retracted tasks, after their rows have left the tables. */
  forgetRetracted(ids: readonly string[]): Promise<void>;

  /**
   * Resolves when something has changed since the last call of this process, or after a timeout in ms. Costs next to nothing meanwhile.
   * @param since `changeCount` before the caller looked at the queue: later changes count, whichever call noticed them
   */
  changed(milliseconds: number, signal?: AbortSignal, since?: number): Promise<void>;
  /** How many changes this process has noticed. */
  readonly changeCount: number;

  /**
   * Makes this process the manager, which writes the tables, until it ends. null: another process is the manager.
   * @returns the leadership. `lost` aborts when another process may manage by now: then nothing may be written. Only engines for other
   *   machines have it.
   */
  manage(who: { host: string; pid: number }): Promise<Management | null>;
  /** The process that manages; null: none. */
  manager(): Promise<ManagerInfo | null>;

  close(): Promise<void>;
}

export type { Destination, Task, TaskCommand, TaskSpec };

/** The methods of a queue that workers need. */
export type WorkerQueue = Pick<
  Queue,
  | 'take'
  | 'setLog'
  | 'complete'
  | 'fail'
  | 'requeue'
  | 'counts'
  | 'paused'
  | 'nextTime'
  | 'gpusPerTask'
  | 'search'
  | 'report'
  | 'manager'
  | 'changed'
  | 'changeCount'
> & { attempts(which: 'living'): Promise<{ readonly length: number }> };

/** The error of a queue that can't be used. @param queue its path or URL */
export function unusable(queue: string, problem: string, remedy: string, cause?: unknown): GPUOwnerError {
  const message = sanitize(`the queue ${queue} ${problem}. ${remedy}`, 1_000);
  return new GPUOwnerError('ERR_QUEUE', message, { cause });
}

/** Thrown when the queue was removed from where it was opened, or only a copy is there. */
export class QueueRemovedError extends GPUOwnerError {
  constructor(message: string) {
    super('ERR_QUEUE', sanitize(message, 1_000));
  }
}

/** Tasks per question to a queue. */
const MAX_BATCH = 500;

/** Splits entries into groups, each as large as one question to a queue may be. */
export function* batchesOf<T>(entries: Iterable<T>): Generator<T[]> {
  let batch: T[] = [];
  for (const entry of entries) {
    if (batch.push(entry) < MAX_BATCH) continue;
    yield batch;
    batch = [];
  }
  if (batch.length > 0) yield batch;
}

/** Reads all completions after one by its sequence. */
export async function* completionsAfter(
  queue: Pick<Queue, 'completions'>,
  sequence: number,
): AsyncGenerator<Completion> {
  for (let cursor: number | undefined = sequence; cursor !== undefined; ) {
    const page: Completion[] = await queue.completions(cursor, MAX_BATCH);
    yield* page;
    cursor = page.at(-1)?.sequence;
  }
}

/** The methods of a queue that only read. */
export type Queries = Pick<
  Queue,
  'lookUp' | 'counts' | 'nextTime' | 'tasks' | 'attempts' | 'completions' | 'retracted'
>;
