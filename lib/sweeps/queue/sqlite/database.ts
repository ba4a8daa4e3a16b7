import { statSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { setImmediate as breathe } from 'node:timers/promises';
import type * as SQLite from '@photostructure/sqlite';
import { GPUOwnerError } from '../../../errors.ts';
import { now, sleep } from '../../../platform/index.ts';
import { unusable } from '../queue.ts';
import { explain, findFile, isBusy, makeFile, narrowFiles, removed } from './files.ts';
import { makeSchema } from './schema.ts';

/** How long SQLite itself waits for another writer. The process does nothing else meanwhile. */
const BUSY_TIMEOUT_MS = 20;
/** How often a database that is used is looked for in its place. */
const LOOK_INTERVAL_MS = 200;
/** How long an operation waits for other writers in all. */
const WRITER_TIMEOUT_MS = 60_000;

/**
 * SQLite itself syncs only for a checkpoint: see `#sync`. The log is moved into the database after 16 MB only: tasks are found by
 * hashes, so that each thousand of them touches most pages of that index.
 */
const SETTINGS = `
  PRAGMA journal_mode = WAL;
  PRAGMA synchronous = NORMAL;
  PRAGMA cache_size = -8000;
  PRAGMA wal_autocheckpoint = 4000;
`;

type Cell = string | number | null;
export type SQLRow = Record<string, Cell>;
/** Values by the names of their placeholders. */
type Bindings = Record<string, Cell>;

/** One connection to the database of a queue. Transactions wait for other writers, and errors say what to do. */
export class Database {
  /** The file, links resolved. */
  readonly path: string;

  readonly #connection: SQLite.DatabaseSyncInstance;
  #isOpen = true;
  readonly #statements = new Map<string, SQLite.StatementSyncInstance>();
  /** The inodes of the files that are in use, and when they were last looked for. */
  readonly #inodes = new Map<string, number>();
  #lookedAt = 0;
  #log: Promise<FileHandle> | null = null;
  #lastSync: Promise<void> = Promise.resolve();
  #nextSync: Promise<void> | null = null;

  private constructor(path: string, connection: SQLite.DatabaseSyncInstance) {
    this.path = path;
    this.#connection = connection;
  }

  /**
   * @param create whether to make it where there is none
   * @returns null: there is none
   * @throws ERR_QUEUE
   */
  static async open(file: string, create: boolean): Promise<Database | null> {
    const path = create ? makeFile(file) : findFile(file);
    if (path === null) return null;
    narrowFiles(path);
    const { DatabaseSync } = loadSQLite();
    const connection = await retryWhileBusy(path, () => new DatabaseSync(path));
    const database = new Database(path, connection);
    try {
      await retryWhileBusy(path, () => {
        connection.exec(`PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}`);
        connection.exec(SETTINGS);
        makeSchema(connection, path);
        connection.prepare('SELECT count(*) FROM setting').get(); // from here on, all files are there
      });
    } catch (error) {
      connection.close();
      throw error;
    }
    database.watch(path, statSync(path).ino);
    return database;
  }

  /** Writes in one transaction. It may run again, if another process is in the way. @throws ERR_QUEUE */
  async write<T>(act: () => T): Promise<T> {
    await breathe(); // the rest of the process gets its turn between writes
    const result = await this.#transact('BEGIN IMMEDIATE', act);
    await this.#sync();
    return result;
  }

  /** Acknowledged writes survive a power cut. All that were written before the disk is asked share one wait for it. */
  #sync(): Promise<void> {
    this.#nextSync ??= this.#lastSync.then(() => {
      this.#nextSync = null;
      const sync = this.#syncNow();
      this.#lastSync = sync.catch(() => {}); // those who wait for it have the error
      return sync;
    });
    return this.#nextSync;
  }

  /** Other threads wait for the disk, this one goes on. */
  async #syncNow(): Promise<void> {
    // No lock of SQLite's is in this file, so that closing it ends none. It is the same file as long as the connection is open.
    this.#log ??= open(`${this.path}-wal`).catch((error) => {
      this.#log = null; // to be opened by the next write
      throw error;
    });
    await (await this.#log).datasync();
  }

  /** Runs queries that see one state of the database. @throws ERR_QUEUE */
  read<T>(transaction: () => T): Promise<T> {
    return this.#transact('BEGIN', transaction);
  }

  all<T = SQLRow>(sql: string, values: Bindings = {}): T[] {
    return this.#prepare(sql).all(values) as T[];
  }

  /** Reads rows one by one. */
  each<T>(sql: string, values: Bindings): IterableIterator<T> {
    return this.#prepare(sql).iterate(values) as IterableIterator<T>;
  }

  get<T = SQLRow>(sql: string, values: Bindings = {}): T | undefined {
    return this.#prepare(sql).get(values) as T | undefined;
  }

  /** @returns how many rows it has changed */
  run(sql: string, values: Bindings = {}): number {
    return this.#prepare(sql).run(values).changes;
  }

  setting(key: string): string | null {
    const sql = 'SELECT value FROM setting WHERE key = :key';
    return this.get<{ value: string }>(sql, { key })?.value ?? null;
  }

  /** @param value null: none any longer */
  set(key: string, value: string | null): void {
    if (value === null) this.run('DELETE FROM setting WHERE key = :key', { key });
    else this.run('INSERT OR REPLACE INTO setting VALUES (:key, :value)', { key, value });
  }

  /** A text that differs after each change by any process. Costs some microseconds. */
  version(): string {
    const others = this.get<{ data_version: number }>('PRAGMA data_version');
    const own = this.get<{ changes: number }>('SELECT total_changes() AS changes');
    return `${others?.data_version}/${own?.changes}`;
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  close(): void {
    if (!this.isOpen) return;
    try {
      // Moves the log into the file unless another process uses it. The connection itself ends only when its statements are
      // collected as garbage.
      this.#connection.exec('PRAGMA busy_timeout = 0; PRAGMA wal_checkpoint(PASSIVE)');
    } catch {
      // Nothing is lost: the log stays beside the file.
    }
    this.#statements.clear();
    this.#isOpen = false;
    this.#connection.close();
    this.#log?.then((log) => log.close()).catch(() => {}); // whoever has written has the error
  }

  /** Goes on only as long as this file is in its place. */
  watch(path: string, inode: number): void {
    this.#inodes.set(path, inode);
  }

  /** Refuses to go on in files that were removed: what is written there is lost. Looks some times per second. @throws QueueRemovedError */
  expectInPlace(): void {
    if (now() - this.#lookedAt < LOOK_INTERVAL_MS) return;
    for (const [path, inode] of this.#inodes)
      if (statSync(path, { throwIfNoEntry: false })?.ino !== inode) throw removed(this.path);
    this.#lookedAt = now();
  }

  #prepare(sql: string): SQLite.StatementSyncInstance {
    let statement = this.#statements.get(sql);
    if (statement === undefined) {
      statement = this.#connection.prepare(sql);
      this.#statements.set(sql, statement);
    }
    return statement;
  }

  #transact<T>(begin: string, transaction: () => T): Promise<T> {
    return retryWhileBusy(this.path, () => {
      if (!this.isOpen) throw unusable(this.path, 'is closed', 'Open it again.');
      this.expectInPlace();
      this.#connection.exec(begin);
      try {
        const result = transaction();
        this.#connection.exec('COMMIT');
        return result;
      } catch (error) {
        try {
          this.#connection.exec('ROLLBACK');
        } catch {
          // Some errors have done so already.
        }
        throw error;
      }
    });
  }
}

/**
 * Node.js's own SQLite, from 22.13 on, without its warning that it is experimental; for older ones, the package that has the
 * same interface. Neither is imported: only those who have a queue need it.
 * @throws ERR_QUEUE
 */
function loadSQLite(): typeof SQLite {
  const { emitWarning } = process;
  process.emitWarning = () => {};
  try {
    const own: unknown = process.getBuiltinModule('node:sqlite' as 'node:fs');
    if (own !== undefined) return own as typeof SQLite;
  } finally {
    process.emitWarning = emitWarning;
  }
  try {
    return createRequire(import.meta.filename)('@photostructure/sqlite') as typeof SQLite;
  } catch (cause) {
    throw new GPUOwnerError(
      'ERR_QUEUE',
      `Node.js ${process.versions.node} has no SQLite, which queues on one machine need. Use Node.js 22.13 or newer, ` +
        'or install the package that stands in for it beside gpu-owner: npm install @photostructure/sqlite ' +
        '(-g if gpu-owner was installed so). ' +
        'Or install the wheel, which brings its own Node.js: uv tool install gpu-owner',
      { cause },
    );
  }
}

/** Retries while other writers hold the database, without blocking this process. */
async function retryWhileBusy<T>(path: string, act: () => T): Promise<T> {
  const end = now() + WRITER_TIMEOUT_MS;
  for (let milliseconds = 1; ; milliseconds = Math.min(2 * milliseconds, 50)) {
    try {
      return act();
    } catch (error) {
      if (!isBusy(error)) throw explain(error, path);
      if (now() > end) {
        throw unusable(
          path,
          `has been locked by another process for ${WRITER_TIMEOUT_MS / 1000} s`,
          'The process may be suspended (kill -CONT resumes it) or hang. fuser -v shows which has the file open.',
          error,
        );
      }
    }
    await sleep(milliseconds * (0.5 + Math.random()));
  }
}
