import { closeSync } from 'node:fs';
import { Lookout } from '../change-notifier.ts';
import { findAttempt } from './attempts.ts';
import type { Database } from './database.ts';
import { unnoticedAttempts } from './queries.ts';
import type { LockFile } from './locks.ts';

/** How often is looked for changes while somebody wants to know, in ms. */
const PERIOD = 200;
/** Locks that end change nothing in the database: they are looked at every so many periods. */
const PERIODS_OF_LOCKS = 5;

interface Open {
  lock: number | null;
  controller: AbortController;
}

/**
 * Notices what others do: for those who wait for changes, and for the attempts of this process, whose tasks may be taken from
 * them. Costs nothing while there are neither.
 */
export class Watch {
  readonly #database: Database;
  readonly #locks: LockFile;
  /** Attempts of this process by their tokens. */
  readonly #open = new Map<string, Open>();
  readonly #lookout = new Lookout(
    PERIOD,
    () => this.#tick(),
    () => this.#open.size > 0,
  );
  #periods = 0;
  /** What was noticed last. */
  #version: string;
  #told = new Set<number>();

  constructor(database: Database, locks: LockFile) {
    this.#database = database;
    this.#locks = locks;
    this.#version = database.version();
  }

  /** @param lock its descriptor, which becomes the watch's */
  add(token: string, lock: number | null): AbortSignal {
    const controller = new AbortController();
    this.#open.set(token, { lock, controller });
    this.#lookout.adjust();
    return controller.signal;
  }

  /** It has ended, and nothing of it lives in this process. */
  remove(token: string): void {
    const open = this.#open.get(token);
    if (open === undefined) return;
    this.#open.delete(token);
    if (open.lock !== null) closeSync(open.lock);
    this.#lookout.adjust();
  }

  /** See `Queue.changed`. */
  async changed(milliseconds: number, signal?: AbortSignal, since?: number): Promise<void> {
    if (signal?.aborted || this.#look()) return;
    await this.#lookout.wait(milliseconds, signal, since);
  }

  /** See `Queue.changeCount`. */
  get changeCount(): number {
    return this.#lookout.told;
  }

  close(): void {
    for (const token of [...this.#open.keys()]) this.remove(token);
    this.#lookout.close();
  }

  #tick(): void {
    const looksAtLocks = this.#lookout.isAwaited && ++this.#periods % PERIODS_OF_LOCKS === 0;
    if (!this.#look() && looksAtLocks && this.#someLockEnded()) this.#lookout.tell();
  }

  /** Whether anything has changed since it was last asked; tells everybody whom it may concern. */
  #look(): boolean {
    try {
      const version = this.#database.version();
      if (version === this.#version) return false;
      this.#version = version;
      this.#abortEnded();
    } catch {
      // Another process is in the way: next time. Anything worse is met by those who wait in what they do next.
    }
    this.#lookout.tell();
    return true;
  }

  #abortEnded(): void {
    for (const [token, { controller }] of this.#open) {
      if (controller.signal.aborted) continue;
      const attempt = findAttempt(this.#database, token);
      if (attempt !== undefined && attempt.outcome === null) continue;
      controller.abort(new Error(attempt?.error ?? 'the task was ended by another process'));
    }
  }

  /** Of each attempt, once: nobody may want its task. */
  #someLockEnded(): boolean {
    try {
      const ended = unnoticedAttempts(this.#database, this.#locks);
      const news = ended.some((number) => !this.#told.has(number));
      this.#told = new Set(ended);
      return news;
    } catch {
      return false;
    }
  }
}
