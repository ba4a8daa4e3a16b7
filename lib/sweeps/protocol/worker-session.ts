import { errorMessage, GPUOwnerError } from '../../errors.ts';
import { now, sanitize, schema, sleep } from '../../platform/index.ts';
import { type Attempt, type Queue, QueueRemovedError, type TaskFailure } from '../queue/index.ts';
import { isValues, parseValue, stringifyValue, type Value, type Values } from '../task/index.ts';
import type { Begin } from './manager-connection.ts';
import { failureText } from './messages.ts';

/** Between the end of a command without a manager and the time when its task is given out again, in ms. */
const SLACK_MS = 1_000;
/** How long a wait for changes of the queue takes at most, in ms. */
const CHANGED_MS = 5_000;
/** Between two messages that the queue has changed, in ms. */
const MIN_CHANGED_MS = 50;

/** Tasks that one host may have at a time: each takes a descriptor of this process. */
const MAX_TASKS = 256;

export interface WorkerSessionOptions {
  queue: Queue;
  /** The name by which the host was asked: it can't say another. */
  host: string;
  begin: Begin;
  send: (line: string) => void;
  /** Called when a task has failed. */
  onFailure: (name: string, error: string) => void;
  /** Gets words of the host that aren't questions, unchecked. */
  hear: (message: Readonly<Record<string, unknown>>) => void;
}

const { amount, flag, nullable, object, or, record, text, whole } = schema;
const MESSAGE = record({ id: whole(), call: text, args: schema.listOf((value) => value, 4) });
const WORKER = record({
  name: schema.shownText(200),
  pid: whole(),
  gpus: schema.listOf(schema.shownText(200), 1_000),
});
const LOG = record({ path: text, from: whole(), to: nullable(whole()) });
const STEP = record({
  phase: text,
  id: text,
  step: whole(),
  value: amount(Number.MAX_VALUE, -Number.MAX_VALUE),
});
const FAILURE_TEXT: schema.Check<string> = (value, path) => failureText(text(value, path));
const FAILURE = record({ error: or(FAILURE_TEXT, ''), retry: flag });

/** Questions of the workers on one host over one connection, and the attempts that they have: see `RemoteQueue`. */
export class WorkerSession {
  readonly #options: WorkerSessionOptions;
  readonly #given = new Map<string, Attempt>();
  readonly #closed = new AbortController();
  /** Tasks that are being fetched for the workers. */
  #fetched = 0;
  #heard = now();
  #prolonged = Number.NEGATIVE_INFINITY;

  constructor(options: WorkerSessionOptions) {
    this.#options = options;
    this.#send({ begin: { ...options.begin } });
    void this.#tellChanges();
  }

  drain(): void {
    this.#send({ drain: true });
  }

  stop(): void {
    this.#send({ stop: true });
  }

  /** Takes a line of the host. @throws Error for one that makes no sense */
  receive(line: string): void {
    const message = parseValue(line);
    const source = object(message, 'message');
    if (source.call === undefined) {
      this.#options.hear(source);
      return;
    }
    const { id, call, args } = MESSAGE(message, 'message');
    void this.#answer(call, args).then(
      (answer) => this.#send({ id, answer }),
      (error: Error) => {
        const code = error instanceof GPUOwnerError ? error.code : 'ERR_QUEUE';
        const isRemoved = error instanceof QueueRemovedError;
        this.#send({ id, error: { code, text: error.message, isRemoved } });
      },
    );
  }

  /**
   * Ends with the connection. Tasks that the workers have are given out again once nothing of them can live there.
   * @param isOver whether the workers have ended: their keepers end the tasks
   */
  close(isOver: boolean): void {
    this.#closed.abort();
    if (this.#given.size === 0) return;
    const { begin, host } = this.#options;
    const silence = isOver ? 0 : this.#heard + begin.silence - now();
    const left = silence + begin.grace + SLACK_MS;
    const giveBack = async () => {
      for (const attempt of this.#given.values()) {
        const why = `the connection to ${host} broke`;
        await (attempt.isOnce
          ? this.#fail(attempt.token, { error: `${why}; it is not started again by itself`, retry: false })
          : this.#requeue(attempt.token, why, 0)
        ).catch(() => {}); // the queue has a deadline of its own
      }
    };
    setTimeout(() => void giveBack(), Math.max(0, left)).unref();
  }

  async #answer(call: string, args: readonly unknown[]): Promise<Value> {
    const { queue } = this.#options;
    const [first, second, third] = args;
    switch (call) {
      case 'heartbeat':
        return this.#prolong();
      case 'take':
        return this.#take(WORKER(first, 'worker'));
      case 'setLog': {
        const { path, from, to } = LOG(second, 'log');
        await queue.setLog(this.#own(first), { path, from, to });
        return null;
      }
      case 'complete':
        return this.#complete(this.#own(first), valuesOf(second));
      case 'fail':
        return this.#fail(this.#own(first), FAILURE(second, 'failure'));
      case 'requeue':
        return this.#requeue(this.#own(first), FAILURE_TEXT(second, 'why'), amount()(third, 'delay'));
      case 'counts':
      case 'gpusPerTask':
      case 'paused':
      case 'search':
        return (await queue[call]()) as unknown as Value;
      case 'nextTime': {
        const time = await queue.nextTime();
        return time === null ? null : time - Date.now(); // the clocks of two machines differ
      }
      case 'report':
        return queue.report(STEP(first, 'report'));
      case 'living':
        return (await queue.attempts('living')).length;
      default:
        throw new Error(`there is no question ${sanitize(call, 40)}`);
    }
  }

  /** Interval of the attempts' heartbeats to the queue, in ms. */
  get #period(): number {
    return this.#options.begin.silence / 6;
  }

  /** How long attempts may outlive this process since the queue was told of them. */
  get #outlives(): number {
    const { silence, grace } = this.#options.begin;
    return silence + grace + SLACK_MS + this.#period;
  }

  /** Before the answer: from its question on, the worker counts on its tasks. */
  async #prolong(): Promise<null> {
    const heard = now();
    if (this.#given.size > 0 && heard - this.#prolonged >= this.#period / 2) {
      await this.#options.queue.prolong?.([...this.#given.keys()], this.#outlives);
      this.#prolonged = heard;
    }
    this.#heard = heard;
    return null;
  }

  async #take(worker: schema.Checked<typeof WORKER>): Promise<Value> {
    const { queue, host } = this.#options;
    if (this.#given.size + this.#fetched >= MAX_TASKS) return null;
    this.#fetched++;
    const attempt = await queue.take({ ...worker, host }, { outlives: this.#outlives }).finally(() => {
      this.#fetched--;
    });
    if (attempt === null) return null;
    const { token, task, start, isOnce, signal } = attempt;
    if (this.#closed.signal.aborted) {
      await queue.requeue(token, `the connection to ${host} broke`);
      return null;
    }
    this.#given.set(token, attempt);
    signal.addEventListener('abort', () => {
      this.#send({ revoked: token, why: errorMessage(signal.reason) });
    });
    const { id, parameters, command, destinations } = task;
    return {
      token,
      start,
      isOnce,
      task: {
        id,
        name: task.name,
        parameters,
        command: { ...command },
        destinations: destinations.map((each) => ({ ...each })),
      },
    };
  }

  /** The token of an attempt that the host has: others are none of its business. */
  #own(token: unknown): string {
    if (typeof token === 'string' && this.#given.has(token)) return token;
    throw new Error('the host has no such task');
  }

  async #complete(token: string, result: Values | null): Promise<boolean> {
    const isOwn = await this.#options.queue.complete(token, result);
    this.#given.delete(token);
    return isOwn;
  }

  async #fail(token: string, failure: TaskFailure): ReturnType<Queue['fail']> {
    const { queue, onFailure } = this.#options;
    const state = await queue.fail(token, failure);
    const name = this.#given.get(token)?.task.name;
    if (state !== null && name !== undefined) onFailure(name, failure.error);
    this.#given.delete(token);
    return state;
  }

  async #requeue(token: string, why: string, delay: number): Promise<boolean> {
    const isOwn = await this.#options.queue.requeue(token, why, delay);
    this.#given.delete(token);
    return isOwn;
  }

  async #tellChanges(): Promise<void> {
    const { queue } = this.#options;
    const { signal } = this.#closed;
    for (let seen = queue.changeCount; !signal.aborted; ) {
      await queue.changed(CHANGED_MS, signal, seen).catch(() => sleep(CHANGED_MS, signal));
      if (queue.changeCount !== seen) this.#send({ changed: true });
      seen = queue.changeCount;
      // A queue that is closed or was removed answers at once, each time.
      await sleep(MIN_CHANGED_MS, signal);
    }
  }

  #send(message: Values): void {
    if (!this.#closed.signal.aborted) this.#options.send(stringifyValue(message));
  }
}

function valuesOf(value: unknown): Values | null {
  if (value === null || isValues(value)) return value;
  throw new Error('a result is an object');
}
