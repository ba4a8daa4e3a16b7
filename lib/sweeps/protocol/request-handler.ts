import { GPUOwnerError } from '../../errors.ts';
import { hostName, isLoopback, sanitize, sleep } from '../../platform/index.ts';
import { formatProgress } from '../progress/index.ts';
import { type AttemptInfo, NO_PID, type Queue, QueueRemovedError } from '../queue/index.ts';
import type { Values } from '../task/index.ts';
import type { RequestAnswer } from './connection.ts';
import { ACK, describeTask, NO_TASK, type Request, RequestError, whyRejected } from './messages.ts';

export interface RequestHandlerOptions {
  queue: Queue;
  /** How long a worker may keep a task without a message about it, in ms. */
  lifetime: number;
  /** Reads the result from the row that the worker has written itself; null: there is none. */
  resultInTable: (taskId: string) => Promise<Values | null>;
  /** Waits for a task that a search makes; false: none comes. Absent: there is no search. */
  awaitTrial?: () => Promise<boolean>;
  /** Tells a person something. */
  tell: (message: string) => void;
}

/** How long a request waits for a queue that can't be used: many workers don't ask again after an error. */
const QUEUE_TIMEOUT_MS = 60_000;
const RETRY_MS = 500;
/** How long a table may take to be read: workers wait ten seconds for an answer. */
const READ_TIMEOUT_MS = 5_000;

/**
 * Handles requests of workers. The handler keeps no state that matters: the queue knows which worker has which task, also after
 * a restart.
 */
export class RequestHandler {
  readonly #options: RequestHandlerOptions;
  /** Workers that got a task and will ask again. */
  readonly #expected = new Set<string>();
  /** Hosts and workers that have completed a task without a result. */
  readonly #withoutResult = new Set<string>();
  readonly #closed = new AbortController();

  constructor(options: RequestHandlerOptions) {
    this.#options = options;
  }

  /** Whether all workers know that there is nothing left. */
  get isQuiet(): boolean {
    return this.#expected.size === 0;
  }

  /** Ends waits for the queue, as no client waits for answers any longer. */
  close(): void {
    this.#closed.abort();
  }

  /** @throws RequestError, and what the queue throws, if that goes on for a minute */
  async handle(request: Request, from: string): Promise<RequestAnswer> {
    if (request.type === 'status') return this.#status();
    for (const end = performance.now() + QUEUE_TIMEOUT_MS; ; ) {
      try {
        return await this.#act(request, from);
      } catch (error) {
        // Each may be done once more: what is known already changes nothing.
        const passes =
          error instanceof GPUOwnerError &&
          error.code === 'ERR_QUEUE' &&
          !(error instanceof QueueRemovedError);
        if (!passes || this.#closed.signal.aborted || performance.now() > end) throw error;
        await sleep(RETRY_MS, this.#closed.signal);
      }
    }
  }

  async #act(request: Exclude<Request, { type: 'status' }>, from: string): Promise<RequestAnswer> {
    switch (request.type) {
      case 'request_task':
        return this.#assign(request, from);
      case 'task_complete':
        return this.#complete(request);
      case 'task_failed': {
        const failure = { error: request.error, retry: true };
        // A worker that repeats itself because an answer was lost makes no mistake.
        return this.#end(
          request,
          async ({ token, outcome }) =>
            outcome === 'failed' || (await this.#options.queue.fail(token, failure)) !== null,
        );
      }
      case 'submit_result':
        return this.#submit(request);
    }
  }

  async #status(): Promise<RequestAnswer> {
    const counts = await this.#options.queue.counts();
    const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
    const status = {
      total,
      pending: counts.pending,
      assigned: counts.active,
      complete: counts.completed,
      failed: counts.failed,
      progress: formatProgress(counts.completed, total),
    };
    return { text: JSON.stringify({ type: 'status', status }) };
  }

  async #assign({ worker, gpu }: Request & { type: 'request_task' }, from: string): Promise<RequestAnswer> {
    const { queue, lifetime, awaitTrial } = this.#options;
    const host = isLoopback(from) ? hostName() : from;
    const asker = { name: worker, host, pid: NO_PID, gpus: gpu === null ? [] : [gpu] };
    let attempt = await queue.take(asker, { lifetime });
    while (attempt === null && (await awaitTrial?.())) attempt = await queue.take(asker, { lifetime });
    if (attempt === null) {
      this.#expected.delete(worker);
      return NO_TASK;
    }
    const { task, token } = attempt;
    this.#expected.add(worker);
    attempt.signal.addEventListener('abort', () => {
      this.#noteRevoked({ token, taskId: task.id, worker: asker }).catch(() => {}); // the queue has a deadline of its own
    });
    const undelivered = async () => {
      await queue.requeue(token, `${worker} closed the connection before it got the answer`);
    };
    return { text: describeTask(task, worker, Date.now()), undelivered };
  }

  /** Ends an attempt that was cancelled or timed out: the queue watches over it until it hears that this is known. */
  async #noteRevoked(attempt: Pick<AttemptInfo, 'token' | 'taskId' | 'worker'>): Promise<void> {
    await this.#options.queue.requeue(attempt.token, 'it was revoked');
    if ((await this.#current(attempt))?.outcome === 'lost') this.#expected.delete(attempt.worker.name);
  }

  async #submit(request: Request & { type: 'submit_result' }): Promise<RequestAnswer> {
    return this.#end(request, (attempt) => this.#accept(attempt, request.result));
  }

  async #complete(request: Request & { type: 'task_complete' }): Promise<RequestAnswer> {
    return this.#end(request, async (attempt) => {
      const { outcome } = attempt;
      if (outcome === 'completed') return true;
      const isOpen = outcome === null || outcome === 'lost';
      const result = isOpen ? await this.#resultInTable(attempt.taskId) : null;
      const isAccepted = await this.#accept(attempt, result);
      if (isAccepted && outcome === null && result === null) this.#warnOfMissingResult(attempt);
      return isAccepted;
    });
  }

  /** Completes the task, also if the attempt was lost since it took too long, and no other one has completed the task. */
  async #accept(attempt: AttemptInfo, result: Values | null): Promise<boolean> {
    const { queue } = this.#options;
    const { token, taskId } = attempt;
    if (await queue.complete(token, result)) return true;
    if ((await this.#current(attempt))?.outcome !== 'lost') return false;
    const [row] = await queue.lookUp([taskId]);
    if (row?.state === 'completed') return row.source === 'table'; // it was late before
    if (result === null || row?.state === 'cancelled') return false;
    if (row?.state === 'active') await queue.cancel({ ids: [taskId] });
    const [isImported = false] = await queue.importResults([{ id: taskId, result }]);
    return isImported;
  }

  /** The manager says what is wrong with a table that can't be read. */
  #resultInTable(taskId: string): Promise<Values | null> {
    const timeout = new Promise<null>((resolve) => {
      setTimeout(resolve, READ_TIMEOUT_MS, null).unref();
    });
    return Promise.race([this.#options.resultInTable(taskId).catch(() => null), timeout]);
  }

  /** Warns of completions without a result: a worker may send its results to its own localhost, where no manager listens. */
  #warnOfMissingResult({ taskName, worker: { name: worker, host } }: AttemptInfo): void {
    const key = `${host} ${worker}`;
    if (this.#withoutResult.has(key)) return;
    this.#withoutResult.add(key);
    this.#options.tell(
      `warning: ${worker} on ${host} completed ${taskName} without a result: it sent no submit_result to this manager, and the task's table has no row with all its parameters`,
    );
  }

  async #end(
    { task, worker }: { task: string; worker: string },
    act: (attempt: AttemptInfo) => Promise<boolean>,
  ): Promise<RequestAnswer> {
    const attempts = await this.#attemptsOf(task, worker);
    for (const attempt of attempts) {
      if (!(await act(attempt))) continue;
      this.#expected.add(worker);
      return ACK;
    }
    for (const attempt of attempts) await this.#noteRevoked(attempt);
    throw new RequestError(whyRejected(task, worker, attempts));
  }

  async #current({ taskId, token }: Pick<AttemptInfo, 'taskId' | 'token'>): Promise<AttemptInfo | undefined> {
    const attempts = await this.#options.queue.attempts({ taskId });
    return attempts.find((each) => each.token === token);
  }

  /** Finds the attempts of a worker at a task, the last first. @throws RequestError if there are none */
  async #attemptsOf(task: string, worker: string): Promise<AttemptInfo[]> {
    const { queue } = this.#options;
    let known = false;
    for await (const row of queue.tasks({ match: task })) {
      if (row.task.name !== task) continue;
      known = true;
      const attempts = (await queue.attempts({ taskId: row.task.id })).filter(
        (attempt) => attempt.worker.pid === NO_PID && attempt.worker.name === worker,
      );
      if (attempts.length > 0) return attempts.reverse();
    }
    throw new RequestError(
      known
        ? `task ${sanitize(task)} was never given to ${sanitize(worker)}`
        : `there is no task ${sanitize(task)}`,
    );
  }
}
