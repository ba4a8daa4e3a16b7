import type { Settings, WaitingState } from '../../claims/index.ts';
import type { Queue, State, Attempt } from '../queue/index.ts';
import type { GPU } from '../../gpus/index.ts';
import type { Task, Values } from '../task/index.ts';
import { WorkerClaim } from '../../jobs/index.ts';
import { hostName } from '../../platform/index.ts';
import { AttemptRun, logPath, type Verdict } from './attempt.ts';
import { AttemptFiles } from './attempt-files.ts';
import { delayOf, Failures, forgetDelay } from './circuit-breaker.ts';
import { Insistence, Persistence } from './retry.ts';
import { Outlook, type View } from './work-status.ts';
import { Stopping } from './shutdown.ts';

export interface WorkerOptions {
  queue: Queue;
  /** Commands run in `directory`; `state` is for the worker's own files. Both absolute. `host`: names of logs begin with it. */
  project: { directory: string; state: string; host?: string };
  /** Which GPUs, and how many for each task. */
  settings: Settings;
  /** How long the current task may take to finish once the worker drains, in ms; null (default): as long as it takes. */
  grace?: number | null;
  /** The name of this machine, for others. Default: its own. */
  host?: string;
  /** Told of everything that happens. Must not throw. */
  report?: (event: WorkerEvent) => void;
  /** Between SIGTERM and SIGKILL when a command must end, in ms. Default: 10 s. */
  endingGrace?: number;
  /** After how long without work it lets its GPUs go, in ms. Default: 30 s. */
  idleLimit?: number;
  /** Whether more tasks may still come into the queue: then an empty one isn't the end. */
  expecting?: () => boolean;
  /** Somebody looks on: tell every few seconds how things stand while it waits for GPUs. */
  watched?: boolean;
}

/** What happens to a worker, as it happens: for progress displays and logs. `worker` is its name: 'gpu0', 'gpu0-1', 'gpu0.2'. */
export type WorkerEvent =
  /** It wants GPUs; again whenever there is news, with what it waits for. */
  | { type: 'claiming'; waiting: WaitingState | null }
  | { type: 'claimed'; worker: string; gpus: readonly GPU[] }
  /** A task's command is about to be started. `log`: absolute path. `start`: which of its counted starts this is, from 1. */
  | { type: 'assigned'; worker: string; task: Task; start: number; log: string }
  /** `seconds`: how long the command ran. */
  | { type: 'completed'; worker: string; task: Task; result: Values; seconds: number }
  /** `state`: what became of it: 'pending' when it will be started again. */
  | { type: 'failed'; worker: string; task: Task; error: string; state: State; seconds: number }
  /** It wasn't the task's fault. `delay`: ms until it may be started again. */
  | { type: 'given-back'; worker: string; task: Task; why: string; delay: number }
  /** The task isn't this worker's any longer (cancelled, lost): its command was ended, or its outcome came too late. */
  | { type: 'revoked'; worker: string; task: Task; why: string }
  /** Processes that a command had left when it ended, and that were ended after it. */
  | { type: 'left-behind'; worker: string; task: Task; count: number; names: readonly string[] }
  /** Nothing to do at the moment. `worker` is null while it holds no GPUs. `why`: tasks are paused, all have their time to wait for, or are active elsewhere. */
  | { type: 'idle'; worker: string | null; why: 'paused' | 'delayed' | 'active' }
  /** It has let its GPUs go: others stand in line, it had no work, something is wrong with them, or it ends. */
  | { type: 'released'; worker: string; why: 'others' | 'idle' | 'environment' | 'end' }
  /** Something doesn't work that is tried again: the queue, mostly. */
  | { type: 'trouble'; worker: string | null; message: string }
  | { type: 'stopped'; worker: string | null; end: WorkerEnd };

/** Why a worker has ended. */
export interface WorkerEnd {
  /**
   * finished: no task is left or can come back. drained, stopped: on request. failures: three different tasks have failed on it and
   * none succeeded in between. environment: three times in a row, a task couldn't be run for what wasn't its fault. error: it
   * could not go on; `error` has the reason, such as that no GPU can ever be had.
   */
  why: 'finished' | 'drained' | 'stopped' | 'failures' | 'environment' | 'error';
  /** For failures and environment: what went wrong, the same for all if it was. */
  message: string | null;
  error: Error | null;
}

const IDLE_LIMIT = 30_000;
/** When to try again to get a task that is there but could not be had, in ms. */
const SOON = 200;
const ENDING_GRACE = 10_000;

/** Claims GPUs and runs tasks of a queue on them, one after the other. Several may run in one process. */
export class Worker {
  readonly #options: WorkerOptions;
  readonly #stopping: Stopping;
  readonly #outlook: Outlook;
  readonly #persistence: Persistence;
  readonly #insistence: Insistence;
  readonly #failures = new Failures();
  readonly #cleaning = new Set<Promise<void>>();
  #claim: WorkerClaim | null = null;
  #idleSince: number | null = null;
  #end: WorkerEnd | null = null;

  constructor(options: WorkerOptions) {
    this.#options = options;
    this.#stopping = new Stopping(options.grace ?? null, options.endingGrace ?? ENDING_GRACE);
    this.#outlook = new Outlook(options.queue, options.expecting ?? (() => false));
    const tell = (message: string) => this.#report({ type: 'trouble', worker: this.name, message });
    this.#persistence = new Persistence(this.#stopping, tell);
    this.#insistence = new Insistence(tell);
  }

  /** 'gpu0', 'gpu0-1', 'gpu0.2': by the GPUs that it holds; null while it holds none. */
  get name(): string | null {
    return this.#claim === null ? null : nameOf(this.#claim.gpus);
  }

  /** Finishes the current task, takes no more, and ends. */
  drain(): void {
    this.#stopping.drain();
  }

  /** Ends at once; the current task is given back and doesn't count. */
  stop(): void {
    this.#stopping.stop();
  }

  /** Works until no task is left or can come back, or until it is told to end. Never rejected. */
  async run(): Promise<WorkerEnd> {
    AttemptFiles.tidy(this.#options.project.state);
    let end: WorkerEnd;
    try {
      end = await this.#work();
    } catch (error) {
      // Waits end with errors when the worker is to end.
      const why = this.#stopping.requested ?? 'error';
      end = { why, message: null, error: why === 'error' ? (error as Error) : null };
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
      const requested = this.#stopping.requested;
      if (requested !== null) return { why: requested, message: null, error: null };
      const attempt = await this.#take();
      if (attempt !== null) {
        await this.#attempt(attempt, this.#claim as WorkerClaim);
        this.#idleSince = null;
        // Whoever waits behind us has waited long enough; we stand in line again.
        if (this.#claim?.othersWait()) this.#release('others');
        continue;
      }
      const view = await this.#persistence.get(() => this.#outlook.look());
      if (view.state === 'done') return { why: 'finished', message: null, error: null };
      if (view.state === 'wait') await this.#rest(view);
      else if (this.#claim === null) await this.#claimFor();
      else await this.#outlook.change(SOON, this.#stopping.signal); // somebody else was quicker
    }
  }

  /** null: it has no GPUs, or there is nothing for them. */
  async #take(): Promise<Attempt | null> {
    const claim = this.#claim;
    if (claim === null) return null;
    const { host = hostName(), queue } = this.#options;
    const gpus = claim.gpus.map(({ uuid }) => uuid);
    const taker = { worker: nameOf(claim.gpus), host, pid: process.pid, gpus };
    return this.#persistence.get(() => queue.take(taker));
  }

  /** There is work: gets GPUs for it, unless others have done it meanwhile, or the queue was removed. */
  async #claimFor(): Promise<void> {
    const { settings, watched } = this.#options;
    this.#report({ type: 'claiming', waiting: null });
    const ending = new AbortController();
    const needless = this.#outlook.untilNeedless(AbortSignal.any([ending.signal, this.#stopping.signal]));
    const signal = AbortSignal.any([ending.signal, this.#stopping.signal]);
    void needless.then((isSo) => isSo && ending.abort(new Error('there is nothing to claim them for')));
    try {
      const claim = () =>
        WorkerClaim.claim(settings, {
          maxWait: null,
          signal,
          watched,
          onWaiting: (waiting) => this.#report({ type: 'claiming', waiting }),
        });
      this.#claim = await this.#insistence.get(claim, signal);
      this.#idleSince = null;
      this.#report({ type: 'claimed', worker: nameOf(this.#claim.gpus), gpus: this.#claim.gpus });
    } catch (error) {
      if (!ending.signal.aborted) throw error;
    } finally {
      ending.abort();
      await needless;
    }
  }

  /** Nothing can be had at the moment. */
  async #rest(view: View & { state: 'wait' }): Promise<void> {
    const now = performance.now();
    if (this.#idleSince === null) {
      this.#idleSince = now;
      this.#report({ type: 'idle', worker: this.name, why: view.why });
    }
    const left = this.#idleSince + (this.#options.idleLimit ?? IDLE_LIMIT) - now;
    if (this.#claim !== null && left <= 0) this.#release('idle');
    else if (this.#claim?.othersWait()) this.#release('others');
    const most = this.#claim === null ? Number.POSITIVE_INFINITY : left;
    await this.#outlook.change(Math.min(view.longest, most), this.#stopping.signal);
  }

  async #attempt(attempt: Attempt, claim: WorkerClaim): Promise<void> {
    const { queue, project, endingGrace: grace = ENDING_GRACE } = this.#options;
    const { task, token, start } = attempt;
    const worker = nameOf(claim.gpus);
    this.#report({ type: 'assigned', worker, task, start, log: logPath(project, task, worker) });
    const run = new AttemptRun({
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
    const verdict = await this.#stopping.during(run, () => run.run());
    attempt.signal.removeEventListener('abort', revoke);
    const left = run.leftBehind;
    if (left !== null) this.#report({ type: 'left-behind', worker, task, ...left });
    if (attempt.signal.aborted) {
      const why = (attempt.signal.reason as Error)?.message ?? 'it was taken back';
      // It isn't ours to give back, but now the queue knows that nothing of it lives: it may be given out again.
      await this.#persistence.get(() => queue.requeue(token, why));
      this.#revoked(attempt, worker, why);
    } else if (run.interrupted) {
      await this.#requeue(attempt, worker, 'the worker was told to end', 0);
    } else {
      await this.#conclude(attempt, worker, verdict, run.seconds);
    }
    const cleaning = run.cleanUp().finally(() => this.#cleaning.delete(cleaning));
    this.#cleaning.add(cleaning);
  }

  async #conclude(attempt: Attempt, worker: string, verdict: Verdict, seconds: number): Promise<void> {
    const { queue } = this.#options;
    const { task, token } = attempt;
    if (verdict.kind === 'environment') {
      await this.#requeue(attempt, worker, verdict.why, delayOf(queue, task.id));
      if (verdict.spoiled) this.#release('environment');
      this.#stopFor('environment', this.#failures.environment(verdict.why));
      return;
    }
    forgetDelay(queue, task.id);
    if (verdict.kind === 'completed') {
      const { result } = verdict;
      this.#failures.succeeded();
      if (!(await this.#persistence.get(() => queue.complete(token, result))))
        return this.#tooLate(attempt, worker);
      this.#report({ type: 'completed', worker, task, result, seconds });
      return;
    }
    const { error, retry } = verdict;
    const state = await this.#persistence.get(() => queue.fail(token, { error, retry }));
    if (state === null) return this.#tooLate(attempt, worker);
    this.#report({ type: 'failed', worker, task, error, state, seconds });
    this.#stopFor('failures', this.#failures.task(task.id, error));
  }

  async #requeue(attempt: Attempt, worker: string, why: string, delay: number): Promise<void> {
    const { queue } = this.#options;
    const { task, token } = attempt;
    if (!(await this.#persistence.get(() => queue.requeue(token, why, delay))))
      return this.#tooLate(attempt, worker);
    this.#report({ type: 'given-back', worker, task, why, delay });
  }

  #tooLate(attempt: Attempt, worker: string): void {
    this.#revoked(attempt, worker, 'its end came too late: the task is not this attempt’s any longer');
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

  #report(event: WorkerEvent): void {
    this.#options.report?.(event);
  }
}

function nameOf(gpus: readonly GPU[]): string {
  const numbers = gpus.map(({ index, instance }) =>
    instance === null ? `${index}` : `${index}.${instance}`,
  );
  return `gpu${numbers.join('-')}`;
}
