import type { Settings, WaitingState } from '../../claims/index.ts';
import { asError } from '../../errors.ts';
import type { GPU } from '../../gpus/index.ts';
import { WorkerClaim } from '../../jobs/index.ts';
import { hostName, usageError } from '../../platform/index.ts';
import { isTrial } from '../progress/index.ts';
import type { Project } from '../project/index.ts';
import type { Attempt, State, TaskFailure, WorkerQueue } from '../queue/index.ts';
import type { Task, Values } from '../task/index.ts';
import { type AttemptResult, AttemptRun, logPath } from './attempt.ts';
import { AttemptFiles } from './attempt-files.ts';
import { CircuitBreaker } from './circuit-breaker.ts';
import { delayOf, forgetDelay, retryClaim, retryQueue } from './retry.ts';
import { Shutdown } from './shutdown.ts';
import { type WorkState, WorkStatus } from './work-status.ts';

export interface WorkerOptions {
  queue: WorkerQueue;
  project: Project;
  /** Which GPUs, and how many for each task. */
  settings: Settings;
  /** How long the current task may take to finish once the worker drains, in ms; null (default): as long as it takes. */
  grace?: number | null;
  /** The name of this machine, for others. Default: its own. */
  host?: string;
  /** Gets every event. Must not throw. */
  report?: (event: WorkerEvent) => void;
  /** Between SIGTERM and SIGKILL when a command must end, in ms. Default: 10 s. */
  endingGrace?: number;
  /** After how long without work it lets its GPUs go, in ms. Default: 30 s. */
  idleLimit?: number;
}

/** An event of a worker, for progress displays and logs. `worker` is its name: 'gpu0', 'gpu0-1', 'gpu0.2'. */
export type WorkerEvent =
  /** The worker wants GPUs. Repeated whenever the reason of the wait changes. */
  | { type: 'claiming'; waiting: WaitingState | null }
  /** Workers of a process begin to wait for GPUs. */
  | { type: 'waiting'; text: string }
  | { type: 'claimed'; worker: string; gpus: readonly GPU[] }
  /** A task's command is about to be started. `log`: absolute path. `start`: which of its counted starts this is, from 1. */
  | { type: 'assigned'; worker: string; task: Task; start: number; log: string }
  /** `seconds`: how long the command ran. */
  | { type: 'completed'; worker: string; task: Task; result: Values; seconds: number }
  /** `state`: the task's new state, 'pending' if it will be started again. */
  | { type: 'failed'; worker: string; task: Task; error: string; state: State; seconds: number }
  /** The task was requeued without blame. `delay`: ms until it may be started again. */
  | { type: 'given-back'; worker: string; task: Task; why: string; delay: number }
  /** The task was taken away (cancelled, lost): its command was ended, or its outcome came too late. */
  | { type: 'revoked'; worker: string; task: Task; why: string }
  /** Processes that a command had left when it ended, and that were ended after it. */
  | { type: 'left-behind'; worker: string; task: Task; count: number; names: readonly string[] }
  /** There is nothing to do. `worker` is null while it holds no GPUs. `why`: the queue is paused, all tasks are delayed, or active elsewhere. */
  | { type: 'idle'; worker: string | null; why: 'paused' | 'delayed' | 'active' }
  /** The worker has released its GPUs: others queue for them, it had no work, something is wrong with them, or it ends. */
  | { type: 'released'; worker: string; why: 'others' | 'idle' | 'environment' | 'end' }
  /** Something failed and is retried, mostly the queue. */
  | { type: 'trouble'; worker: string | null; message: string }
  | { type: 'stopped'; worker: string | null; end: WorkerEnd };

/** The reason why a worker has ended. */
export interface WorkerEnd {
  /**
   * finished: no task is left or can come back. drained, stopped: on request. failures: three different tasks have failed in a row.
   * environment: three times in a row, a task couldn't be run and wasn't to blame. error: it could not go on; `error` has the reason, such
   * as that no GPU can ever be had.
   */
  why: 'finished' | 'drained' | 'stopped' | 'failures' | 'environment' | 'error';
  /** The common error of failures and environment; null: none. */
  message: string | null;
  error: Error | null;
}

const IDLE_TIMEOUT_MS = 30_000;
/** When to try again for a task that another worker was quicker to take. */
const TAKE_AGAIN_MS = 200;
const ENDING_GRACE_MS = 10_000;

/** Claims GPUs and runs tasks of a queue on them, one after the other. Several may run in one process. */
export class Worker {
  readonly #options: WorkerOptions;
  readonly #shutdown: Shutdown;
  readonly #status: WorkStatus;
  readonly #breaker = new CircuitBreaker();
  readonly #cleaning = new Set<Promise<void>>();
  #claim: WorkerClaim | null = null;
  #idleSince: number | null = null;
  #end: WorkerEnd | null = null;

  constructor(options: WorkerOptions) {
    this.#options = options;
    this.#shutdown = new Shutdown(options.grace ?? null, options.endingGrace ?? ENDING_GRACE_MS);
    this.#status = new WorkStatus(options.queue);
  }

  /** 'gpu0', 'gpu0-1', 'gpu0.2' (a MIG instance, or a share): by the GPUs that it holds; null while it holds none. */
  get name(): string | null {
    return this.#claim === null ? null : nameOf(this.#claim);
  }

  /** Finishes the current task, takes no more, and ends. */
  drain(): void {
    this.#shutdown.drain();
  }

  /** Ends at once; the current task is given back and doesn't count. */
  stop(): void {
    this.#shutdown.stop();
  }

  /** Works until no task is left or can come back, or until it is asked to end. Never rejects. */
  async run(): Promise<WorkerEnd> {
    AttemptFiles.tidy(this.#options.project.state);
    let end: WorkerEnd;
    try {
      end = await this.#work();
    } catch (error) {
      // Waits end with errors when the worker is to end.
      const why = this.#shutdown.requested ?? 'error';
      end = { why, message: null, error: why === 'error' ? asError(error) : null };
    }
    const worker = this.name;
    this.#release('end');
    await Promise.all(this.#cleaning);
    this.#report({ type: 'stopped', worker, end });
    return end;
  }

  async #work(): Promise<WorkerEnd> {
    for (;;) {
      if (this.#end !== null) return this.#end;
      const requested = this.#shutdown.requested;
      if (requested !== null) return { why: requested, message: null, error: null };
      const attempt = await this.#take();
      if (attempt !== null) {
        await this.#attempt(attempt, this.#claim as WorkerClaim);
        this.#idleSince = null;
        // Others wait in the queue for GPUs: this worker queues again behind them.
        if (this.#claim?.othersWait()) this.#release('others');
        continue;
      }
      const work = await this.#retry(() => this.#status.readState());
      if (work.state === 'done') return { why: 'finished', message: null, error: null };
      if (work.state === 'wait') await this.#wait(work);
      else if (this.#claim === null) await this.#claimFor();
      else await this.#status.change(TAKE_AGAIN_MS, this.#shutdown.signal); // another worker was quicker
    }
  }

  /** null: it has no GPUs, or there is nothing for them. */
  async #take(): Promise<Attempt | null> {
    const claim = this.#claim;
    if (claim === null) return null;
    const { host = hostName(), queue, settings } = this.#options;
    const gpus = claim.gpus.map(({ uuid }) => uuid);
    const worker = { name: nameOf(claim), host, pid: process.pid, gpus };
    // The user may have said meanwhile that tasks need more.
    refuseTooFew(await this.#retry(() => queue.gpusPerTask()), settings.request.count);
    return this.#retry(() => queue.take(worker));
  }

  /** There is work: gets GPUs for it, unless others have done it meanwhile, or the queue was removed. */
  async #claimFor(): Promise<void> {
    const { settings } = this.#options;
    this.#report({ type: 'claiming', waiting: null });
    const ending = new AbortController();
    const needless = this.#status.untilNeedless(AbortSignal.any([ending.signal, this.#shutdown.signal]));
    const signal = AbortSignal.any([ending.signal, this.#shutdown.signal]);
    void needless.then((isSo) => isSo && ending.abort(new Error('no task needs them')));
    try {
      const claim = () =>
        WorkerClaim.claim(settings, {
          maxWait: null,
          signal,
          onWaiting: (waiting) => this.#report({ type: 'claiming', waiting }),
        });
      this.#claim = await retryClaim(claim, signal, (message) => this.#tell(message));
      this.#idleSince = null;
      this.#report({ type: 'claimed', worker: nameOf(this.#claim), gpus: this.#claim.gpus });
    } catch (error) {
      if (!ending.signal.aborted) throw error;
    } finally {
      ending.abort();
      await needless;
    }
  }

  /** Nothing can be had at the moment. */
  async #wait({ why, maxWait }: WorkState & { state: 'wait' }): Promise<void> {
    const now = performance.now();
    if (this.#idleSince === null) {
      this.#idleSince = now;
      this.#report({ type: 'idle', worker: this.name, why });
    }
    const left = this.#idleSince + (this.#options.idleLimit ?? IDLE_TIMEOUT_MS) - now;
    if (this.#claim !== null && left <= 0) this.#release('idle');
    else if (this.#claim?.othersWait()) this.#release('others');
    const unwatch = this.#claim?.onPreemption(() => this.#release('others'));
    const most = this.#claim === null ? Number.POSITIVE_INFINITY : left;
    await this.#status.change(Math.min(maxWait, most), this.#shutdown.signal).finally(() => unwatch?.());
  }

  async #attempt(attempt: Attempt, claim: WorkerClaim): Promise<void> {
    const { queue, project, endingGrace: grace = ENDING_GRACE_MS } = this.#options;
    const { task, token, start } = attempt;
    const worker = nameOf(claim);
    this.#report({ type: 'assigned', worker, task, start, log: logPath(project, task, worker) });
    const search = await this.#retry(() => queue.search());
    const run = new AttemptRun({
      queue,
      search: search !== null && isTrial(search, task) ? search : null,
      attempt,
      claim,
      name: worker,
      project,
      grace,
      // Nothing hangs on it, so it is not worth waiting for, nor trying again.
      onLog: (log) => void queue.setLog(token, log).catch(() => {}),
    });
    const revoke = () => run.interrupt(grace);
    attempt.signal.addEventListener('abort', revoke, { once: true });
    if (attempt.signal.aborted) revoke();
    let isPreempted = false;
    const unwatch = claim.onPreemption((graceMs) => {
      isPreempted = true;
      run.giveWay(graceMs);
    });
    const result = await this.#shutdown.during(run, () => run.run());
    unwatch();
    attempt.signal.removeEventListener('abort', revoke);
    const left = run.leftBehind;
    if (left !== null) this.#report({ type: 'left-behind', worker, task, ...left });
    if (attempt.signal.aborted) {
      const why = (attempt.signal.reason as Error)?.message ?? 'it was revoked';
      // The task isn't this attempt's any longer, but now the queue knows that nothing of it lives: it may be given out again.
      await this.#retry(() => queue.requeue(token, why));
      this.#revoked(attempt, worker, why);
    } else if (run.interrupted) {
      const why = isPreempted ? 'another request needs its GPUs' : 'the worker was told to end';
      await this.#giveBack(attempt, worker, run, why, 0);
    } else {
      await this.#conclude(attempt, worker, result, run);
    }
    if (isPreempted) this.#release('others');
    const cleaning = run.cleanUp().finally(() => this.#cleaning.delete(cleaning));
    this.#cleaning.add(cleaning);
  }

  async #conclude(attempt: Attempt, worker: string, end: AttemptResult, run: AttemptRun): Promise<void> {
    const { queue } = this.#options;
    const { task, token } = attempt;
    if (end.kind === 'environment') {
      await this.#giveBack(attempt, worker, run, end.why, delayOf(queue, task.id));
      if (end.gpuFault) this.#release('environment');
      this.#stopFor('environment', this.#breaker.environmentFailed(end.why));
      return;
    }
    forgetDelay(queue, task.id);
    if (end.kind === 'completed') {
      const { result } = end;
      this.#breaker.succeeded();
      if (!(await this.#retry(() => queue.complete(token, result)))) return this.#tooLate(attempt, worker);
      this.#report({ type: 'completed', worker, task, result, seconds: run.seconds });
      return;
    }
    const { error, retry } = end;
    if (await this.#fail(attempt, worker, { error, retry }, run.seconds))
      this.#stopFor('failures', this.#breaker.taskFailed(task.id, error));
  }

  /** @returns whether the task was the attempt's */
  async #fail(attempt: Attempt, worker: string, failure: TaskFailure, seconds: number): Promise<boolean> {
    const { task, token } = attempt;
    const state = await this.#retry(() => this.#options.queue.fail(token, failure));
    if (state === null) this.#tooLate(attempt, worker);
    else this.#report({ type: 'failed', worker, task, error: failure.error, state, seconds });
    return state !== null;
  }

  /** Requeues a task that isn't to blame, unless it was started and a person must say whether it is started again. */
  async #giveBack(
    attempt: Attempt,
    worker: string,
    run: AttemptRun,
    why: string,
    delay: number,
  ): Promise<void> {
    if (!attempt.isOnce || !run.hasStarted) return this.#requeue(attempt, worker, why, delay);
    const error = `${why}; it is not started again by itself`;
    await this.#fail(attempt, worker, { error, retry: false }, run.seconds);
  }

  async #requeue(attempt: Attempt, worker: string, why: string, delay: number): Promise<void> {
    const { queue } = this.#options;
    const { task, token } = attempt;
    if (!(await this.#retry(() => queue.requeue(token, why, delay)))) return this.#tooLate(attempt, worker);
    this.#report({ type: 'given-back', worker, task, why, delay });
  }

  #tooLate(attempt: Attempt, worker: string): void {
    this.#revoked(attempt, worker, 'its end came too late: the task no longer belongs to this attempt');
  }

  #revoked({ task }: Attempt, worker: string, why: string): void {
    this.#report({ type: 'revoked', worker, task, why });
  }

  #stopFor(why: 'failures' | 'environment', message: string | null): void {
    if (message !== null) this.#end = { why, message, error: null };
  }

  #release(why: (WorkerEvent & { type: 'released' })['why']): void {
    const worker = this.name;
    this.#claim?.release();
    this.#claim = null;
    if (worker !== null) this.#report({ type: 'released', worker, why });
  }

  #retry<T>(operation: () => Promise<T>): Promise<T> {
    return retryQueue(operation, this.#shutdown, (message) => this.#tell(message));
  }

  #tell(message: string): void {
    this.#report({ type: 'trouble', worker: this.name, message });
  }

  #report(event: WorkerEvent): void {
    this.#options.report?.(event);
  }
}

/** @throws ERR_INVALID_ARGUMENT for a worker that has fewer GPUs than each task of the list needs */
export function refuseTooFew(needed: number, offered: number): void {
  const shown = (count: number) => `${count} ${count === 1 ? 'GPU' : 'GPUs'}`;
  if (needed <= offered) return;
  throw usageError(
    `each task of this sweep needs ${shown(needed)}, and this worker has ${shown(offered)}: start it with --gpus-per-task ${needed}`,
  );
}

function nameOf({ gpus, shareNumbers }: Pick<WorkerClaim, 'gpus' | 'shareNumbers'>): string {
  const numbers = gpus.map(({ index, instance }, i) =>
    [
      index,
      ...(instance === null ? [] : [instance]),
      ...(shareNumbers === null ? [] : [shareNumbers[i]]),
    ].join('.'),
  );
  return `gpu${numbers.join('-')}`;
}
