import { type ErrorCode, GPUOwnerError } from '../../errors.ts';
import { bootMilliseconds } from '../../platform/index.ts';
import {
  ChangeNotifier,
  type Deadline,
  NO_PID,
  QueueRemovedError,
  type WorkerQueue,
} from '../queue/index.ts';
import type { Value, Values } from '../task/index.ts';
import type { ManagerConnection } from './manager-connection.ts';

/** How often workers on another machine tell that they live, in ms, unless they have little time for that. */
const HEARTBEAT_MS = 2_000;

interface OpenAttempt {
  controller: AbortController;
  deadline: Deadline & { at: number };
}

/**
 * The queue of a manager on another machine, for workers: each question is a line to it, and each answer a line from it. Attempts end
 * when the connection does, or when the manager is silent for too long.
 */
export class RemoteQueue implements WorkerQueue {
  readonly #connection: ManagerConnection;
  readonly #calls = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  readonly #attempts = new Map<string, OpenAttempt>();
  readonly #notifier: ChangeNotifier;
  #last = 0;
  /** When the last heartbeat that was answered was sent, in ms since boot. */
  #heard = bootMilliseconds();
  #lost: QueueRemovedError | null = null;

  constructor(connection: ManagerConnection) {
    this.#connection = connection;
    const period = Math.min(HEARTBEAT_MS, connection.begin.silence / 5);
    this.#notifier = new ChangeNotifier(
      period,
      () => void this.#beat(),
      () => true,
    );
    this.#notifier.adjust();
    connection.listen({ hear: (message) => this.#receive(message), lose: (why) => this.#lose(why) });
  }

  async take(worker: Parameters<WorkerQueue['take']>[0]): ReturnType<WorkerQueue['take']> {
    const asked = bootMilliseconds();
    const { name, pid, gpus } = worker;
    const given = await this.#ask<{ token: string; task: never; start: number; isOnce: boolean } | null>(
      'take',
      { name, pid, gpus },
    );
    if (given === null) return null;
    const { silence, grace } = this.#connection.begin;
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

  counts(): ReturnType<WorkerQueue['counts']> {
    return this.#ask('counts');
  }

  async nextTime(): Promise<number | null> {
    const left = await this.#ask<number | null>('nextTime');
    return left === null ? null : Date.now() + left;
  }

  paused(): ReturnType<WorkerQueue['paused']> {
    return this.#ask('paused');
  }

  gpusPerTask(): Promise<number> {
    return this.#ask('gpusPerTask');
  }

  search(): ReturnType<WorkerQueue['search']> {
    return this.#ask('search');
  }

  report({ phase, id, step, value }: Parameters<WorkerQueue['report']>[0]): Promise<number[]> {
    return this.#ask('report', { phase, id, step, value });
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
      this.#connection.tell({ id, call, args });
    });
  }

  #receive(message: Readonly<Record<string, Value>>): void {
    const { id, revoked, error } = message;
    if (message.changed === true) this.#notifier.notify();
    if (typeof revoked === 'string') {
      // The answer that gave the task may have come together with this message: `take` goes on first.
      queueMicrotask(() => this.#attempts.get(revoked)?.controller.abort(new Error(String(message.why))));
    }
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
    if (sent - this.#heard >= this.#connection.begin.silence) {
      this.#lose(`nothing was heard of the manager for ${Math.round((sent - this.#heard) / 1000)} s`);
    }
    try {
      await this.#ask('heartbeat');
    } catch {
      return; // the next one
    }
    this.#heard = Math.max(this.#heard, sent);
    for (const { deadline } of this.#attempts.values()) {
      deadline.at = Math.max(deadline.at, sent + this.#connection.begin.silence);
      deadline.onMoved?.(deadline.at);
    }
  }

  /** Ends everything: the manager gives the tasks out again. */
  #lose(why: string): void {
    if (this.#lost !== null) return;
    this.#lost = new QueueRemovedError(why);
    for (const { controller } of this.#attempts.values()) controller.abort(this.#lost);
    for (const { reject } of this.#calls.values()) reject(this.#lost);
    this.#calls.clear();
    this.#notifier.close();
  }
}
