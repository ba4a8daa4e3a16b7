import { GPUOwnerError } from '../../errors.ts';
import { hostName, pause, sanitize } from '../../platform/index.ts';
import { formatProgress } from '../manager/index.ts';
import { type AttemptInfo, lacksResult, NO_PID, type Queue, QueueRemovedError } from '../queue/index.ts';
import { isLoopback } from './endpoints.ts';
import { ACK, describeTask, NO_TASK, whyRejected, type Request, RequestError } from './messages.ts';
import type { Answer } from './connection.ts';
import { OwnRows, type OwnRowsOptions } from './own-rows.ts';
import { Troubled } from './worker-circuit-breaker.ts';

export interface DeskOptions {
  queue: Queue;
  /** After so many ms, a task that nothing was heard of is given out again. */
  lifetime: number;
  /** Every worker_id is one worker: one that asks for a task has none. */
  unique: boolean;
  /** What a table has that may be the task's row; null: it isn't known here. */
  rowsOf: OwnRowsOptions['rowsOf'];
  /** Of attempts, as they begin and end. */
  report: (attempt: AttemptInfo) => void;
  /** Something that a person should know. */
  tell: (message: string) => void;
}

/** What workers of the original system receive at most, in one call. */
const RECEIVED = 8_192;
/** How long a request waits for a queue that can't be used: many workers don't ask again after an error. In ms. */
const PATIENCE = 60_000;
const RETRY = 500;

const AGAIN =
  'Put that right, and start it again: it gets tasks after a minute in which it has not asked, or once a pause is over';

/** What requests do. Nothing is remembered here: what was given out, and to whom, the queue knows, also after a restart. */
export class Desk {
  readonly #options: DeskOptions;
  /** Workers that got something and will ask again. */
  readonly #expected = new Set<string>();
  /** Attempts that were given out here, and whose end hasn't been reported, by token. */
  readonly #given = new Set<string>();
  readonly #ownRows: OwnRows;
  readonly #troubled = new Troubled();
  /** How many tasks workers have completed without a result, by host and worker. */
  readonly #withoutResult = new Map<string, number>();
  readonly #closed = new AbortController();
  #toldPause: string | null = null;

  constructor(options: DeskOptions) {
    this.#options = options;
    this.#ownRows = new OwnRows(options);
  }

  /** Do all workers know that there is nothing left? */
  get isQuiet(): boolean {
    return this.#expected.size === 0;
  }

  /** Nobody waits for answers any longer. */
  close(): void {
    this.#closed.abort();
  }

  /** @throws RequestError, and what the queue throws, if that goes on for a minute */
  async handle(request: Request, from: string): Promise<Answer> {
    if (request.type === 'status') return this.#status();
    const done = { earlier: false };
    for (const end = performance.now() + PATIENCE; ; ) {
      try {
        return await this.#act(request, from, done);
      } catch (error) {
        // Each may be done once more: what is known already changes nothing.
        const passes =
          error instanceof GPUOwnerError && error.code === 'ERR_QUEUE' && !(error instanceof QueueRemovedError);
        if (!passes || this.#closed.signal.aborted || performance.now() > end) throw error;
        await pause(RETRY, this.#closed.signal);
      }
    }
  }

  /** @param done what must not be repeated */
  async #act(
    request: Exclude<Request, { type: 'status' }>,
    from: string,
    done: { earlier: boolean },
  ): Promise<Answer> {
    switch (request.type) {
      case 'request_task':
        return this.#give(request, from, done);
      case 'task_complete':
        return this.#complete(request, isLoopback(from));
      case 'task_failed': {
        const failure = { error: request.error, retry: true };
        return this.#end(
          request,
          async (token) => (await this.#options.queue.fail(token, failure)) !== null,
          'failed',
        );
      }
      case 'submit_result':
        return this.#submit(request);
    }
  }

  async #status(): Promise<Answer> {
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

  async #give(
    { worker, gpu }: Request & { type: 'request_task' },
    from: string,
    done: { earlier: boolean },
  ): Promise<Answer> {
    const { queue, lifetime, unique, report, tell } = this.#options;
    const host = isLoopback(from) ? hostName() : from;
    // Not one that this request itself has got, when its answer was lost.
    if (unique && !done.earlier) await this.#endEarlier(worker);
    done.earlier = true;
    if (await this.#isRefused(worker)) return NO_TASK;
    const taker = { worker, host, pid: NO_PID, gpus: gpu === null ? [] : [gpu] };
    const attempt = await queue.take(taker, { lifetime });
    if (attempt === null) {
      this.#expected.delete(worker);
      await this.#sayWhyNot(worker);
      return NO_TASK;
    }
    const { task, token } = attempt;
    this.#expected.add(worker);
    this.#toldPause = null;
    const info: AttemptInfo = {
      token,
      taskId: task.id,
      taskName: task.name,
      taker,
      since: Date.now(),
      ended: null,
      outcome: null,
      submitted: false,
      error: null,
      log: null,
    };
    this.#given.add(token);
    report(info);
    attempt.signal.addEventListener('abort', () => {
      this.#noteTaken(info).catch(() => {}); // the next look has it for the log
    });
    await this.#ownRows.begin(info);
    const text = describeTask(task, worker, info.since);
    const size = Buffer.byteLength(text);
    if (size > RECEIVED) {
      tell(
        `warning: task ${task.name} takes ${size} bytes to describe; workers that receive ${RECEIVED} at once can't read it`,
      );
    }
    const undelivered = async () => {
      const why = `${worker} went before it could be told`;
      if (await queue.requeue(token, why)) this.#reportEnd(info, 'given-back', why);
    };
    return { text, undelivered };
  }

  /** It was cancelled, or its time is over: nobody says so but the queue, which keeps watch over it until it hears that this is known. */
  async #noteTaken(info: AttemptInfo): Promise<void> {
    const { queue } = this.#options;
    await queue.requeue(info.token, 'it was taken away');
    const attempts = await queue.attempts({ taskId: info.taskId });
    const { outcome, error } = attempts.find(({ token }) => token === info.token) ?? info;
    if (outcome === 'lost') this.#expected.delete(info.taker.worker);
    if (outcome !== null && this.#given.has(info.token)) this.#reportEnd(info, outcome, error);
  }

  /** Once for each attempt; those of before a restart come as they are found. */
  #reportEnd(attempt: AttemptInfo, outcome: NonNullable<AttemptInfo['outcome']>, error: string | null): void {
    this.#ownRows.end(attempt.token);
    if (this.#given.delete(attempt.token) || attempt.outcome === null) {
      this.#options.report({ ...attempt, outcome, error });
    }
  }

  /** What it had is a start that came to nothing. */
  async #endEarlier(worker: string): Promise<void> {
    const { queue } = this.#options;
    const error = `${worker} asked for another task without a word about this one`;
    for (const attempt of await queue.attempts('living')) {
      if (attempt.taker.pid !== NO_PID || attempt.taker.worker !== worker) continue;
      if ((await queue.fail(attempt.token, { error, retry: true })) === null) continue;
      this.#reportEnd(attempt, 'failed', error);
      await this.#noteFailure(worker, attempt.taskId, error);
    }
  }

  /** As a worker of `exp worker` ends after such failures: all that can be done here is to give it nothing more. */
  async #noteFailure(worker: string, taskId: string, error: string): Promise<void> {
    const why = this.#troubled.failed(worker, taskId, error);
    if (why === null) return;
    this.#options.tell(`warning: ${worker} gets no more tasks: ${why}. ${AGAIN}`);
    await this.#pauseIfAllAre(why);
  }

  /** Nobody who could do better is known: the rest would only fail, too. */
  async #pauseIfAllAre(why: string): Promise<void> {
    const { queue } = this.#options;
    if (!this.#troubled.all) return;
    const { active, pending } = await queue.counts();
    if (active > 0 || pending === 0 || (await queue.paused()) !== null) return;
    await queue.pause('failures', why);
    this.#troubled.notePause();
  }

  async #isRefused(worker: string): Promise<boolean> {
    const why = this.#troubled.asks(worker);
    if (why === null) return false;
    const paused = (await this.#options.queue.paused()) !== null;
    if (paused) this.#troubled.notePause();
    else if (this.#troubled.resumed()) return false;
    else await this.#pauseIfAllAre(why);
    this.#expected.delete(worker);
    return true;
  }

  /** Once for each pause: they end then. */
  async #sayWhyNot(worker: string): Promise<void> {
    const pause = await this.#options.queue.paused();
    const key = pause === null ? null : String(pause.since);
    if (key !== null && key !== this.#toldPause) {
      this.#options.tell(
        `${worker} asked for a task and got none, since the experiment is paused; workers may end now`,
      );
    }
    this.#toldPause = key;
  }

  async #submit({ task, worker, result }: Request & { type: 'submit_result' }): Promise<Answer> {
    const { queue } = this.#options;
    const attempts = await this.#attemptsOf(task, worker);
    for (const { token } of attempts) if (await queue.submit(token, result)) return ACK;
    // The same once more, as the answer was lost.
    for (const { token, outcome } of attempts) {
      if (outcome === 'completed' && (await queue.complete(token, result))) return ACK;
    }
    throw new RequestError(whyRejected(task, worker, attempts));
  }

  async #complete(request: { task: string; worker: string }, isLocal: boolean): Promise<Answer> {
    const { queue } = this.#options;
    const [attempt] = await this.#attemptsOf(request.task, request.worker);
    const isOpen = attempt?.outcome === null || attempt?.outcome === 'lost';
    if (attempt !== undefined && isOpen && !attempt.submitted) {
      const result = await this.#ownRows.resultOf(attempt, isLocal);
      if (result !== null) await queue.submit(attempt.token, result);
    }
    const answer = await this.#end(request, (token) => queue.complete(token, null), 'completed');
    if (attempt !== undefined && isOpen) await this.#noteCompleted(attempt);
    return answer;
  }

  /** A worker on another machine may send its results to its own localhost, where nobody receives them. */
  async #noteCompleted(ended: AttemptInfo): Promise<void> {
    const attempt = await this.#asOfNow(ended);
    if (attempt === undefined || !lacksResult(attempt)) return;
    const { worker, host } = attempt.taker;
    const key = `${host} ${worker}`;
    const count = (this.#withoutResult.get(key) ?? 0) + 1;
    this.#withoutResult.set(key, count);
    // The first, the tenth, the hundredth.
    if (!/^10*$/.test(String(count))) return;
    const times = count === 1 ? '' : `, the ${count}th of its tasks`;
    this.#options.tell(
      `warning: ${worker} on ${host} completed ${attempt.taskName} without a result${times}: it sent no submit_result to this manager, and no row of it is in the task's table`,
    );
  }

  async #end(
    { task, worker }: { task: string; worker: string },
    act: (token: string) => Promise<boolean>,
    outcome: 'completed' | 'failed',
  ): Promise<Answer> {
    const attempts = await this.#attemptsOf(task, worker);
    for (const attempt of attempts) {
      if (!(await act(attempt.token))) continue;
      this.#expected.add(worker);
      const error = outcome === 'failed' ? ((await this.#asOfNow(attempt))?.error ?? null) : null;
      // A late one that had been given up, or one that is said again, was counted before.
      const ends = attempt.outcome === null;
      this.#reportEnd(attempt, outcome, error);
      if (outcome === 'completed') this.#troubled.succeeded(worker);
      else if (ends) await this.#noteFailure(worker, attempt.taskId, error ?? '');
      return ACK;
    }
    for (const attempt of attempts) await this.#noteTaken(attempt);
    // Saying the same again, because the answer was lost, is no mistake.
    if (attempts[0]?.outcome === outcome && outcome === 'failed') return ACK;
    throw new RequestError(whyRejected(task, worker, attempts));
  }

  async #asOfNow({ taskId, token }: AttemptInfo): Promise<AttemptInfo | undefined> {
    const attempts = await this.#options.queue.attempts({ taskId });
    return attempts.find((each) => each.token === token);
  }

  /** The attempts of a worker at a task, the last first. @throws RequestError if there are none */
  async #attemptsOf(task: string, worker: string): Promise<AttemptInfo[]> {
    const { queue } = this.#options;
    let known = false;
    for await (const row of queue.tasks({ match: task, limit: 2 })) {
      if (row.task.name !== task) continue;
      known = true;
      const attempts = (await queue.attempts({ taskId: row.task.id })).filter(
        ({ taker }) => taker.pid === NO_PID && taker.worker === worker,
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
