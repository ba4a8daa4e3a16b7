import { closeSync } from 'node:fs';
import { isFailure } from '../../../errors.ts';
import { ChangeNotifier } from '../change-notifier.ts';
import { type Queue, QueueRemovedError, type StepValue } from '../queue.ts';
import { readManager } from '../records.ts';
import { settingMethods } from '../settings.ts';
import { attemptMethods, findAttempt, lostAttempts, type OpenAttempts } from './attempts.ts';
import { bulkMethods } from './bulk.ts';
import { Database } from './database.ts';
import { LockFile, MANAGER } from './locks.ts';
import { queryMethods } from './queries.ts';
import { withoutNUL } from './schema.ts';

/** Opens the queue in a file. @param path absolute @returns null: there is none, and it isn't to be made @throws ERR_QUEUE */
export async function openSQLiteQueue(path: string, create: boolean): Promise<Queue | null> {
  const database = await Database.open(path, create);
  if (database === null) return null;
  try {
    return assemble(database, new LockFile(database));
  } catch (error) {
    database.close();
    throw error;
  }
}

function assemble(database: Database, locks: LockFile): Queue {
  const watch = new Watch(database, locks);
  const leadership = leaderMethods(database, locks);
  return {
    url: `sqlite:${database.path}`,
    ...queryMethods(database, locks),
    ...attemptMethods(database, locks, watch),
    ...bulkMethods(database),
    ...settingMethods({
      read: (key) => database.read(() => database.setting(key)),
      change: (key, next) => database.write(() => database.set(key, next(database.setting(key)))),
    }),
    report: (value) => database.write(() => reportStep(database, value)),
    changed: (milliseconds, signal, since) => watch.changed(milliseconds, signal, since),
    get changeCount() {
      return watch.changeCount;
    },
    manage: leadership.manage,
    manager: leadership.manager,
    async close() {
      if (!database.isOpen) return;
      leadership.release();
      watch.close();
      locks.close();
      database.close();
    },
  };
}

/** Keeps a value among the settings, which are in order: those of a step are neighbours. */
function reportStep(database: Database, { phase, id, step, value }: StepValue): number[] {
  const start = `report ${JSON.stringify([withoutNUL(phase), step])} `;
  database.set(start + id, String(value));
  const rows = database.all<{ value: string }>(
    'SELECT value FROM setting WHERE key > :start AND key < :end AND key <> :own',
    { start, end: `${start}~`, own: start + id },
  );
  return rows.map((row) => Number(row.value)).filter(Number.isFinite);
}

function leaderMethods(
  database: Database,
  locks: LockFile,
): Pick<Queue, 'manage' | 'manager'> & { release(): void } {
  /** The descriptor of the manager's lock, while this process manages. */
  let lock: number | null = null;
  const release = () => {
    if (lock !== null) closeSync(lock);
    lock = null;
  };
  const manager = async () => {
    const text = locks.isTaken(MANAGER) ? await database.read(() => database.setting('manager')) : null;
    return text === null ? null : readManager(text);
  };
  return {
    release,
    manager,
    async manage({ host, pid }) {
      const held = locks.take(MANAGER);
      if (held === null) return null;
      try {
        await database.write(() => database.set('manager', JSON.stringify({ host, pid })));
      } catch (error) {
        closeSync(held);
        throw error;
      }
      lock = held;
      return {
        release: async () => {
          if (lock === held) release();
        },
      };
    },
  };
}

/** How often the database is polled while a caller waits for changes. */
const PERIOD_MS = 200;
/** Locks that end change nothing in the database: they are probed once per this many periods. */
const PERIODS_PER_LOCK_PROBE = 5;

interface OpenAttempt {
  lock: number | null;
  controller: AbortController;
}

/**
 * Notices changes by other processes: for those who wait for changes, and for the attempts of this process, whose tasks may be taken
 * from them. Costs nothing while there are neither.
 */
class Watch implements OpenAttempts {
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
  /** Numbers of lost attempts that were notified. */
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
      this.#database.expectInPlace();
      const version = this.#database.version();
      if (version === this.#version) return false;
      this.#version = version;
      this.#abortEnded();
    } catch (error) {
      // A new queue knows nothing of what runs: the commands end, so that nothing runs twice for long.
      if (error instanceof QueueRemovedError)
        for (const { controller } of this.#open.values()) controller.abort(error);
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
      controller.abort(new Error(attempt?.error ?? 'another process ended the task'));
    }
  }

  /** Answers true once for each attempt: there may be no worker for its task. */
  #someLockEnded(): boolean {
    try {
      const lost = lostAttempts(this.#database, this.#locks);
      const isNews = lost.some((number) => !this.#notified.has(number));
      this.#notified = new Set(lost);
      return isNews;
    } catch (error) {
      if (!isFailure(error)) throw error;
      return false; // callers that need the queue meet the error themselves
    }
  }
}
