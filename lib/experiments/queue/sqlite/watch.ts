import { closeSync } from 'node:fs';
import { ChangeNotifier } from '../change-notifier.ts';
import { findAttempt, type OpenAttempts, unnoticedAttempts } from './attempts.ts';
import type { Database } from './database.ts';
import type { LockFile } from './locks.ts';

/** How often the database is polled while somebody waits for changes. */
const PERIOD_MS = 200;
/** Locks that end change nothing in the database: they are probed every so many periods. */
const PERIODS_PER_LOCK_PROBE = 5;

interface OpenAttempt {
  lock: number | null;
  controller: AbortController;
}

/**
 * Notices changes by other processes: for those who wait for changes, and for the attempts of this process, whose tasks may be taken
 * from them. Costs nothing while there are neither.
 */
export class Watch implements OpenAttempts {
  readonly #database: Database;
  readonly #locks: LockFile;
  /** Attempts of this process by their tokens. */
  readonly #open = new Map<string, OpenAttempt>();
  readonly #notifier = new ChangeNotifier(
    PERIOD_MS,
    () => this.#tick(),
    () => this.#open.size > 0,
  );
  #periods = 0;
  /** The version of the database at the last poll. */
  #version: string;
  /** Numbers of attempts whose end was notified. */
  #notified = new Set<number>();

  constructor(database: Database, locks: LockFile) {
    this.#database = database;
    this.#locks = locks;
    this.#version = database.version();
  }

  add(token: string, lock: number | null): AbortSignal {
    const controller = new AbortController();
    this.#open.set(token, { lock, controller });
    this.#notifier.adjust();
    return controller.signal;
  }

  /** Forgets an attempt of which nothing lives in this process. */
  remove(token: string): void {
    const open = this.#open.get(token);
    if (open === undefined) return;
    this.#open.delete(token);
    if (open.lock !== null) closeSync(open.lock);
    this.#notifier.adjust();
  }

  /** See `Queue.changed`. */
  async changed(milliseconds: number, signal?: AbortSignal, since?: number): Promise<void> {
    if (signal?.aborted || this.#poll()) return;
    await this.#notifier.wait(milliseconds, signal, since);
  }

  /** See `Queue.changeCount`. */
  get changeCount(): number {
    return this.#notifier.count;
  }

  close(): void {
    for (const token of [...this.#open.keys()]) this.remove(token);
    this.#notifier.close();
  }

  #tick(): void {
    const probesLocks = this.#notifier.isAwaited && ++this.#periods % PERIODS_PER_LOCK_PROBE === 0;
    if (!this.#poll() && probesLocks && this.#someLockEnded()) this.#notifier.notify();
  }

  /** Whether anything has changed since the last poll; if so, notifies. */
  #poll(): boolean {
    try {
      const version = this.#database.version();
      if (version === this.#version) return false;
      this.#version = version;
      this.#abortEnded();
    } catch {
      // Another process uses the database: next time. Other errors are met by those who wait in what they do next.
    }
    this.#notifier.notify();
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

  /** Answers true once for each attempt: nobody may want its task. */
  #someLockEnded(): boolean {
    try {
      const ended = unnoticedAttempts(this.#database, this.#locks);
      const news = ended.some((number) => !this.#notified.has(number));
      this.#notified = new Set(ended);
      return news;
    } catch {
      return false;
    }
  }
}
