import * as endings from './attempts.ts';
import * as listing from './queries.ts';
import * as selections from './bulk.ts';
import { closeSync } from 'node:fs';
import type { Task, TaskSpec, Values } from '../../task/index.ts';
import type { Attempt, AttemptInfo, Completed, Completion, Counts, Enqueued, Failure, Pause, Queue, Selection, State, WorkerInfo, TaskRow, WithoutResult } from '../queue.ts';
import { readCount, readPause, readRecord, readText } from '../records.ts';
import { Database } from './database.ts';
import { enqueue } from './bulk.ts';
import { tellOfForebears, LockFile, MANAGER } from './locks.ts';
import { plain, taskOf } from './schema.ts';
import { endLost, take } from './attempts.ts';
import { Watch } from './watch.ts';

/** The queue in a file, which is made if need be. @param path absolute @throws ERR_QUEUE */
export async function openSQLiteQueue(path: string): Promise<Queue> {
  return (await open(path, true, false)) as Queue;
}

/** As {@link openSQLiteQueue} where there is a file; else null. @param look by those who may only read it, too */
export async function findSQLiteQueue(path: string, look = false): Promise<Queue | null> {
  return open(path, false, look);
}

async function open(path: string, create: boolean, look: boolean): Promise<Queue | null> {
  const database = await Database.open(path, create, look);
  if (database === null) return null;
  const queue = new SQLiteQueue(database);
  await queue.begin();
  return queue;
}

/** Who manages, as the database has it. */
interface Manager {
  host: string;
  pid: number;
  /** Of the lock file that has the lock. */
  inode: string;
}

class SQLiteQueue implements Queue {
  readonly url: string;
  readonly #database: Database;
  readonly #locks: LockFile;
  readonly #watch: Watch;
  /** The descriptor of its lock, as long as this process manages. */
  #management: number | null = null;

  constructor(database: Database) {
    this.url = `sqlite:${database.path}`;
    this.#database = database;
    try {
      this.#locks = new LockFile(database.path, database.readOnly);
      this.#watch = new Watch(database, this.#locks);
    } catch (error) {
      database.close();
      throw error;
    }
  }

  async begin(): Promise<void> {
    await tellOfForebears(this.#database, this.#locks);
  }

  enqueue(
    tasks: Iterable<TaskSpec> | AsyncIterable<TaskSpec>,
    options: { replaceCommands?: boolean; signal?: AbortSignal } = {},
  ): Promise<Enqueued> {
    return enqueue(this.#database, tasks, options);
  }

  lookUp(ids: readonly string[]): Promise<(TaskRow | null)[]> {
    return listing.lookUp(this.#database, ids);
  }

  async take(taker: WorkerInfo, { lifetime }: { lifetime?: number } = {}): Promise<Attempt | null> {
    const taken = await take(this.#database, this.#locks, taker, lifetime);
    if (taken === null) return null;
    const { token, task, start, lock } = taken;
    const signal = this.#watch.add(token, lock);
    return { token, task: taskOf(task), start, descriptors: lock === null ? [] : [lock], signal };
  }

  async endLost(): Promise<void> {
    const lost = await this.#database.read(
      () => listing.unnoticedAttempts(this.#database, this.#locks).length > 0,
    );
    if (lost) await this.#database.write(() => endLost(this.#database, this.#locks));
  }

  setLog(token: string, log: { path: string; from: number; to: number | null }): Promise<void> {
    return endings.setLog(this.#database, token, log);
  }

  submit(token: string, result: Values): Promise<boolean> {
    return endings.submit(this.#database, token, result);
  }

  async complete(token: string, result: Values | null): Promise<boolean> {
    return this.#ended(token, await endings.complete(this.#database, token, result));
  }

  async fail(token: string, failure: Failure): Promise<State | null> {
    return this.#ended(token, await endings.fail(this.#database, token, failure));
  }

  async requeue(token: string, why: string, delay = 0): Promise<boolean> {
    return this.#ended(token, await endings.requeue(this.#database, token, why, delay));
  }

  importResults(rows: readonly { id: string; result: Values }[]): Promise<boolean[]> {
    return selections.importResults(this.#database, rows);
  }

  retry(selection: Selection): Promise<string[]> {
    return selections.retry(this.#database, selection);
  }

  cancel(selection: Selection | 'all'): Promise<string[]> {
    return selections.cancel(this.#database, selection);
  }

  pause(by: Pause['by'], message: string): Promise<void> {
    return this.#database.write(() => {
      const before = this.#pause();
      // What a person has said stands, and what was said first.
      if (before?.by === 'person' || before?.by === by) return;
      const pause: Pause = { by, message, since: Date.now() };
      this.#database.set('pause', JSON.stringify(pause));
    });
  }

  resume(): Promise<void> {
    return this.#database.write(() => this.#database.set('pause', null));
  }

  paused(): Promise<Pause | null> {
    return this.#database.read(() => this.#pause());
  }

  counts(): Promise<Counts> {
    return listing.countTasks(this.#database);
  }

  nextTime(): Promise<number | null> {
    return listing.nextTime(this.#database, this.#locks);
  }

  tasks(which: { state?: State; match?: string; limit?: number } = {}): AsyncIterable<TaskRow> {
    return listing.listTasks(this.#database, which);
  }

  withoutResult(): Promise<WithoutResult[]> {
    return listing.listWithoutResult(this.#database);
  }

  attempts(which: 'living' | { taskId: string }): Promise<AttemptInfo[]> {
    return listing.listAttempts(this.#database, this.#locks, which);
  }

  completions(after: number, limit: number): Promise<Completion[]> {
    return listing.listCompletions(this.#database, after, limit);
  }

  completed(after: number, limit: number): Promise<Completed[]> {
    return listing.listCompleted(this.#database, after, limit);
  }

  retracted(): Promise<Task[]> {
    return listing.listRetracted(this.#database);
  }

  forgetRetracted(ids: readonly string[]): Promise<void> {
    return listing.forgetRetracted(this.#database, ids);
  }

  changed(milliseconds: number, signal?: AbortSignal, since?: number): Promise<void> {
    return this.#watch.changed(milliseconds, signal, since);
  }

  get changeCount(): number {
    return this.#watch.changeCount;
  }

  async manage(who: { host: string; pid: number }): Promise<{ release(): Promise<void> } | null> {
    if ((await this.manager()) !== null) return null;
    const held = this.#locks.take(MANAGER);
    if (held === null) return null;
    const manager: Manager = { host: plain(who.host), pid: who.pid, inode: held.inode };
    try {
      await this.#database.write(() => this.#database.set('manager', JSON.stringify(manager)));
    } catch (error) {
      closeSync(held.descriptor);
      throw error;
    }
    this.#management = held.descriptor;
    return {
      release: async () => {
        if (this.#management === held.descriptor) this.#release();
      },
    };
  }

  async manager(): Promise<{ host: string; pid: number } | null> {
    const text = await this.#database.read(() => this.#database.setting('manager'));
    if (text === null) return null;
    const { host, pid, inode } = readRecord(text);
    if (!this.#locks.isTaken(MANAGER, readText(inode))) return null;
    return { host: readText(host), pid: readCount(pid) };
  }

  async close(): Promise<void> {
    if (!this.#database.isOpen) return;
    this.#release();
    this.#watch.close();
    this.#locks.close();
    this.#database.close();
  }

  #release(): void {
    if (this.#management !== null) closeSync(this.#management);
    this.#management = null;
  }

  #pause(): Pause | null {
    const text = this.#database.setting('pause');
    return text === null ? null : readPause(text);
  }

  /** Whatever the answer, the attempt is over: its process has nothing more to do with the task. */
  #ended<T>(token: string, answer: T): T {
    this.#watch.remove(token);
    return answer;
  }
}
