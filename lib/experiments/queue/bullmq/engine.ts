import * as listing from './queries.ts';
import * as selections from './bulk.ts';
import type { Task, TaskSpec, Values } from '../../task/index.ts';
import type { Attempt, AttemptInfo, Completed, Completion, Counts, Enqueued, Failure, Management, Manager, Pause, Queue, Selection, State, WorkerInfo, TaskRow, WithoutResult } from '../queue.ts';
import { parseAddress } from './address.ts';
import { Attempts } from './attempts.ts';
import { checkFormat, checkServer, Connection } from './connection.ts';
import { enqueue } from './bulk.ts';
import { Leases } from './lock-renewal.ts';
import { ManagerLease } from './leader.ts';

/**
 * The queue of a project on Redis: see `parseAddress` for URLs.
 * @returns null: there is none, and it isn't to be made
 * @throws ERR_QUEUE, ERR_INVALID_ARGUMENT
 */
export async function openBullMQQueue(url: string, project: string, create: boolean): Promise<Queue | null> {
  const connection = await Connection.open(parseAddress(url, project));
  try {
    await checkServer(connection);
    if (await checkFormat(connection, create)) return new BullMQQueue(connection);
  } catch (error) {
    connection.close();
    throw error;
  }
  connection.close();
  return null;
}

class BullMQQueue implements Queue {
  readonly url: string;
  readonly #connection: Connection;
  readonly #leases: Leases;
  readonly #attempts: Attempts;
  readonly #manager: ManagerLease;

  constructor(connection: Connection) {
    this.url = connection.address.url;
    this.#connection = connection;
    this.#leases = new Leases(connection);
    this.#attempts = new Attempts(connection, this.#leases);
    this.#manager = new ManagerLease(connection, this.#leases);
  }

  enqueue(
    tasks: Iterable<TaskSpec> | AsyncIterable<TaskSpec>,
    options: { replaceCommands?: boolean; signal?: AbortSignal } = {},
  ): Promise<Enqueued> {
    return enqueue(this.#connection, tasks, options);
  }

  lookUp(ids: readonly string[]): Promise<(TaskRow | null)[]> {
    return listing.lookUp(this.#connection, ids);
  }

  take(taker: WorkerInfo, { lifetime }: { lifetime?: number } = {}): Promise<Attempt | null> {
    return this.#attempts.take(taker, lifetime);
  }

  endLost(): Promise<void> {
    return this.#attempts.endLost();
  }

  setLog(token: string, log: { path: string; from: number; to: number | null }): Promise<void> {
    return this.#attempts.setLog(token, log);
  }

  submit(token: string, result: Values): Promise<boolean> {
    return this.#attempts.submit(token, result);
  }

  complete(token: string, result: Values | null): Promise<boolean> {
    return this.#attempts.complete(token, result);
  }

  fail(token: string, failure: Failure): Promise<State | null> {
    return this.#attempts.fail(token, failure);
  }

  requeue(token: string, why: string, delay = 0): Promise<boolean> {
    return this.#attempts.requeue(token, why, delay);
  }

  importResults(rows: readonly { id: string; result: Values }[]): Promise<boolean[]> {
    return selections.importResults(this.#connection, rows);
  }

  retry(selection: Selection): Promise<string[]> {
    return selections.select(this.#connection, 'retry', selection);
  }

  cancel(selection: Selection | 'all'): Promise<string[]> {
    return selections.select(this.#connection, 'cancel', selection);
  }

  pause(by: Pause['by'], message: string): Promise<void> {
    return selections.pause(this.#connection, by, message);
  }

  resume(): Promise<void> {
    return selections.resume(this.#connection);
  }

  paused(): Promise<Pause | null> {
    return selections.paused(this.#connection);
  }

  counts(): Promise<Counts> {
    return listing.countTasks(this.#connection);
  }

  nextTime(): Promise<number | null> {
    return listing.nextTime(this.#connection);
  }

  tasks(which: listing.Which = {}): AsyncIterable<TaskRow> {
    return listing.listTasks(this.#connection, which);
  }

  withoutResult(): Promise<WithoutResult[]> {
    return listing.listWithoutResult(this.#connection);
  }

  attempts(which: 'living' | { taskId: string }): Promise<AttemptInfo[]> {
    return listing.listAttempts(this.#connection, which);
  }

  completions(after: number, limit: number): Promise<Completion[]> {
    return listing.listCompletions(this.#connection, after, limit);
  }

  completed(after: number, limit: number): Promise<Completed[]> {
    return listing.listCompleted(this.#connection, after, limit);
  }

  retracted(): Promise<Task[]> {
    return listing.listRetracted(this.#connection);
  }

  forgetRetracted(ids: readonly string[]): Promise<void> {
    return listing.forgetRetracted(this.#connection, ids);
  }

  changed(milliseconds: number, signal?: AbortSignal, since?: number): Promise<void> {
    return this.#leases.changed(milliseconds, signal, since);
  }

  get changeCount(): number {
    return this.#leases.changeCount;
  }

  manage(who: { host: string; pid: number }): Promise<Management | null> {
    return this.#manager.become(who);
  }

  manager(): Promise<Manager | null> {
    return this.#manager.current();
  }

  async close(): Promise<void> {
    if (this.#connection.isClosed) return;
    // Without Redis, its time runs out by itself.
    if (this.#connection.isReady) await this.#manager.release().catch(() => {});
    this.#leases.close();
    this.#connection.close();
  }
}
