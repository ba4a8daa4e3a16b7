import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { type ErrorCode, GPUOwnerError } from '../../errors.ts';
import { bootMilliseconds } from '../../platform/index.ts';
import {
  ChangeNotifier,
  type Deadline,
  NO_PID,
  QueueRemovedError,
  type WorkerQueue,
} from '../queue/index.ts';
import { parseValue, stringifyValue, type Value, type Values } from '../task/index.ts';

/** How often workers on another machine tell that they live, in ms, unless they have little time for that. */
const HEARTBEAT_MS = 2_000;

/** Times on which the manager and its workers on other machines agree, in ms. */
export interface Patience {
  /** How long workers without an answer keep their tasks. */
  silence: number;
  /** How long their commands may take to end then. */
  grace: number;
}

/** The manager's words that aren't answers. */
export interface ManagerEvents {
  drain: () => void;
  stop: () => void;
}

interface OpenAttempt {
  controller: AbortController;
  deadline: Deadline & { at: number };
}

/**
 * The queue of a manager on another machine, for workers: each question is a line to it, and each answer a line from it. Attempts end
 * when the connection does, or when the manager is silent for too long.
 */
export class RemoteQueue implements WorkerQueue {
  readonly #output: Writable;
  readonly #calls = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  readonly #attempts = new Map<string, OpenAttempt>();
  readonly #notifier: ChangeNotifier;
  readonly #patience: Patience;
  readonly #events: ManagerEvents;
  #last = 0;
  /** When the last heartbeat that was answered was sent, in ms since boot. */
  #heard = bootMilliseconds();
  #lost: QueueRemovedError | null = null;

  private constructor(output: Writable, patience: Patience, events: ManagerEvents) {
    this.#output = output;
    this.#patience = patience;
    this.#events = events;
    const period = Math.min(HEARTBEAT_MS, patience.silence / 5);
    this.#notifier = new ChangeNotifier(
      period,
      () => void this.#beat(),
      () => true,
    );
    this.#notifier.adjust();
  }

  /** Waits for the manager's first line. @throws ERR_QUEUE if it doesn't come */
  static open(input: Readable, output: Writable, events: ManagerEvents): Promise<RemoteQueue> {
    return new Promise((resolve, reject) => {
      let queue: RemoteQueue | null = null;
      const lose = (why: string) => {
        if (queue !== null) queue.#lose(why);
        reject(new GPUOwnerError('ERR_QUEUE', 'no manager speaks on standard input: use exp run --on.'));
      };
      const lines = createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY });
      lines.on('line', (line) => {
        const message = parseValue(line) as Record<string, never>;
        if (queue !== null) return queue.#receive(message);
        queue = new RemoteQueue(output, message.begin as unknown as Patience, events);
        resolve(queue);
      });
      lines.on('close', () => lose('the connection to the manager ended'));
      output.on('error', () => lose('the connection to the manager broke'));
    });
  }

  /** Tells the manager what isn't a question. */
  tell(message: Values): void {
    if (this.#lost === null) this.#output.write(`${stringifyValue(message)}\n`);
  }

  async take(
    worker: Parameters<WorkerQueue['take']>[0],
    { offer }: NonNullable<Parameters<WorkerQueue['take']>[1]> = {},
  ): ReturnType<WorkerQueue['take']> {
    const asked = bootMilliseconds();
    const { name, pid, gpus } = worker;
    const given = await this.#ask<{ token: string; task: never; start: number; isOnce: boolean } | null>(
      'take',
      { name, pid, gpus },
      { ...offer },
    );
    if (given === null) return null;
    const { silence, grace } = this.#patience;
    const controller = new AbortController();
    const deadline = { at: asked + silence, grace, onMoved: null };
    this.#attempts.set(given.token, { controller, deadline });
    return { ...given, descriptors: [], signal: controller.signal, deadline };
  }

  setLog(token: string, { path, from, to }: Parameters<WorkerQueue['setLog']>[1]): Promise<void> {
    return this.#ask('setLog', token, { path, from, to });
  }

  complete(token: string, result: Values | null): Promise<boolean> {
    return this.#end(token, this.#ask('complete', token, result));
  }

  fail(token: string, { error, retry }: Parameters<WorkerQueue['fail']>[1]): ReturnType<WorkerQueue['fail']> {
    return this.#end(token, this.#ask('fail', token, { error, retry }));
  }

  requeue(token: string, why: string, delay = 0): Promise<boolean> {
    return this.#end(token, this.#ask('requeue', token, why, delay));
  }

  counts(offer?: Parameters<WorkerQueue['counts']>[0]): ReturnType<WorkerQueue['counts']> {
    return this.#ask('counts', { ...offer });
  }

  nextTime(offer?: Parameters<WorkerQueue['nextTime']>[0]): Promise<number | null> {
    return this.#ask('nextTime', { ...offer });
  }

  paused(): ReturnType<WorkerQueue['paused']> {
    return this.#ask('paused');
  }

  needs(): ReturnType<WorkerQueue['needs']> {
    return this.#ask('needs');
  }

  search(): ReturnType<WorkerQueue['search']> {
    return this.#ask('search');
  }

  /** The process that answers. */
  async manager(): ReturnType<WorkerQueue['manager']> {
    return { host: '', pid: NO_PID };
  }

  async attempts(): Promise<{ length: number }> {
    return { length: await this.#ask<number>('living') };
  }

  async changed(milliseconds: number, signal?: AbortSignal, since?: number): Promise<void> {
    if (this.#lost !== null) throw this.#lost;
    if (!signal?.aborted) await this.#notifier.wait(milliseconds, signal, since);
  }

  get changeCount(): number {
    return this.#notifier.count;
  }

  async #end<T>(token: string, answer: Promise<T>): Promise<T> {
    const known = await answer;
    this.#attempts.delete(token);
    return known;
  }

  #ask<T>(call: string, ...args: Value[]): Promise<T> {
    if (this.#lost !== null) return Promise.reject(this.#lost);
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve: resolve as never, reject });
      this.tell({ id, call, args });
    });
  }

  #receive(message: Record<string, Value>): void {
    const { id, revoked, error } = message;
    if (message.drain === true) this.#events.drain();
    if (message.stop === true) this.#events.stop();
    if (message.changed === true) this.#notifier.notify();
    if (typeof revoked === 'string')
      this.#attempts.get(revoked)?.controller.abort(new Error(String(message.why)));
    const call = this.#calls.get(id as number);
    if (call === undefined) return;
    this.#calls.delete(id as number);
    if (error === undefined) {
      call.resolve(message.answer as never);
      return;
    }
    const { code, text, isRemoved } = error as { code: ErrorCode; text: string; isRemoved: boolean };
    call.reject(isRemoved ? new QueueRemovedError(text) : new GPUOwnerError(code, text));
  }

  async #beat(): Promise<void> {
    const sent = bootMilliseconds();
    if (sent - this.#heard >= this.#patience.silence) {
      this.#lose(`nothing was heard of the manager for ${Math.round((sent - this.#heard) / 1000)} s`);
    }
    try {
      await this.#ask('heartbeat');
    } catch {
      return; // the next one
    }
    this.#heard = Math.max(this.#heard, sent);
    for (const { deadline } of this.#attempts.values()) {
      deadline.at = Math.max(deadline.at, sent + this.#patience.silence);
      deadline.onMoved?.(deadline.at);
    }
  }

  /** Ends everything: the manager gives the tasks out again. */
  #lose(why: string): void {
    if (this.#lost !== null) return;
    this.#lost = new QueueRemovedError(why, false);
    for (const { controller } of this.#attempts.values()) controller.abort(this.#lost);
    for (const { reject } of this.#calls.values()) reject(this.#lost);
    this.#calls.clear();
    this.#notifier.close();
  }
}
