import type * as SQLite from '@photostructure/sqlite';
import { createRequire } from 'node:module';
import { setTimeout as pause } from 'node:timers/promises';
import { now } from '../../../platform/index.ts';
import { explain, gone, isBusy, notReadable, unusable } from './errors.ts';
import { findFile, inodes, isUnused, makeFile, narrowFiles, whyReadOnly } from './files.ts';
import { findForebears } from './locks.ts';
import { expectCurrent, migrate, STEPS } from './schema.ts';

/** How long SQLite itself waits for another writer, in ms: the process does nothing else meanwhile. */
const BLOCKING = 20;
/** How long others are waited for in all, in ms. */
const PATIENCE = 60_000;

/**
 * What was acknowledged survives a power cut. The log is moved into the database after 16 MB: tasks are found by hashes, so that
 * each thousand of them touches most pages of that index.
 */
const SETTINGS = `
  PRAGMA journal_mode = WAL;
  PRAGMA synchronous = FULL;
  PRAGMA cache_size = -8000;
  PRAGMA wal_autocheckpoint = 4000;
`;

export type Cell = string | number | null;
export type Row = Record<string, Cell>;
/** Values by the names of their placeholders. */
export type Bindings = Record<string, Cell>;

interface Rider {
  act: () => void;
  resolve: () => void;
  reject: (error: unknown) => void;
}

/** One connection to the database of a queue: transactions that wait for their turn, and errors that say what to do. */
export class Database {
  /** The file, links resolved. */
  readonly path: string;
  readonly readOnly: boolean;

  readonly #connection: SQLite.DatabaseSyncInstance;
  readonly #statements = new Map<string, SQLite.StatementSyncInstance>();
  /** The files that the connection has open: what is written to files without a name is lost. */
  readonly #files: readonly string[];
  #inodes = '';
  /** What is to be written along with something else. */
  #riders: Rider[] = [];
  #departure: NodeJS.Timeout | null = null;

  private constructor(path: string, connection: SQLite.DatabaseSyncInstance, readOnly: boolean) {
    this.path = path;
    this.readOnly = readOnly;
    this.#connection = connection;
    this.#files = [path, `${path}-wal`, `${path}-shm`];
  }

  /**
   * @param create whether to make it where there is none
   * @param look whether those will do, too, who may only read it: what writes is refused to them then
   * @returns null: there is none
   * @throws ERR_QUEUE
   */
  static async open(file: string, create: boolean, look = false): Promise<Database | null> {
    const path = create ? makeFile(file) : findFile(file);
    if (path === null) return null;
    narrowFiles(path);
    const obstacle = look ? whyReadOnly(path) : null;
    const readOnly = obstacle !== null;
    // Not imported: only those who have a queue need it, and it is loaded in the same way from either bundle.
    const { DatabaseSync } = createRequire(import.meta.filename)('@photostructure/sqlite') as typeof SQLite;
    const connection = await patiently(path, () => new DatabaseSync(path, { timeout: BLOCKING, readOnly }));
    const database = new Database(path, connection, readOnly);
    try {
      await patiently(path, () => {
        if (readOnly) expectCurrent(connection, path);
        else {
          connection.exec(SETTINGS);
          migrate(connection, path, STEPS, () => findForebears(path));
        }
        connection.prepare('SELECT count(*) FROM count').get(); // from here on, all files are there
      });
    } catch (error) {
      connection.close();
      // Its log can't be made by those who may not write.
      throw obstacle !== null && isUnused(path) ? notReadable(path, obstacle, error) : error;
    }
    database.#inodes = inodes(database.#files);
    return database;
  }

  /** Runs one transaction that writes. It may be run again, if another process is in the way. @throws ERR_QUEUE */
  async write<T>(transaction: () => T): Promise<T> {
    let aboard: readonly Rider[] = [];
    const result = await this.#transact('BEGIN IMMEDIATE', () => {
      aboard = [...this.#riders];
      for (const { act } of aboard) act();
      return transaction();
    });
    this.#alight(aboard);
    for (const { resolve } of aboard) resolve();
    return result;
  }

  /**
   * Writes together with the next transaction that writes, at the latest after so many ms: each transaction of its own waits for
   * the disk.
   */
  writeAlong(act: () => void, milliseconds: number): Promise<void> {
    const written = new Promise<void>((resolve, reject) => this.#riders.push({ act, resolve, reject }));
    this.#departure ??= setTimeout(() => {
      this.#departure = null;
      void this.flush();
    }, milliseconds);
    return written;
  }

  /** Writes what waits for a transaction to come. Never rejected: whoever wanted it is told. */
  async flush(): Promise<void> {
    if (this.#riders.length > 0) await this.write(() => {}).catch((error) => this.#refuse(error));
  }

  /** Runs queries that see one state of the database. @throws ERR_QUEUE */
  read<T>(transaction: () => T): Promise<T> {
    return this.#transact('BEGIN', transaction);
  }

  all<T = Row>(sql: string, values: Bindings = {}): T[] {
    return this.#prepare(sql).all(values) as T[];
  }

  get<T = Row>(sql: string, values: Bindings = {}): T | undefined {
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

  /** Another text whenever anybody has changed anything; costs some microseconds. */
  version(): string {
    const others = this.get<{ data_version: number }>('PRAGMA data_version');
    const own = this.get<{ changes: number }>('SELECT total_changes() AS changes');
    return `${others?.data_version}/${own?.changes}`;
  }

  get isOpen(): boolean {
    return this.#connection.isOpen;
  }

  close(): void {
    if (!this.isOpen) return;
    try {
      // As far as nobody is in the way: the file is then whole without the one beside it. The connection itself ends only when
      // its statements are collected as garbage.
      if (!this.readOnly && this.#isInPlace())
        this.#connection.exec('PRAGMA busy_timeout = 0; PRAGMA wal_checkpoint(PASSIVE)');
    } catch {
      // Nothing is lost: it is in the file beside.
    }
    this.#statements.clear();
    this.#connection.close();
  }

  /** Whether the files that the connection has open are those that others find. */
  #isInPlace(): boolean {
    return inodes(this.#files) === this.#inodes;
  }

  #refuse(error: unknown): void {
    const refused = [...this.#riders];
    this.#alight(refused);
    for (const { reject } of refused) reject(error);
  }

  #alight(riders: readonly Rider[]): void {
    if (riders.length === 0) return;
    this.#riders = this.#riders.filter((rider) => !riders.includes(rider));
    if (this.#riders.length > 0 || this.#departure === null) return;
    clearTimeout(this.#departure);
    this.#departure = null;
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
    return patiently(this.path, () => {
      if (!this.isOpen) throw unusable(this.path, 'is closed', 'Open it again.');
      this.#connection.exec(begin);
      try {
        if (!this.#isInPlace()) {
          throw gone(this.path);
        }
        const result = transaction();
        this.#connection.exec('COMMIT');
        return result;
      } catch (error) {
        // Some errors have done so already.
        if (this.#connection.isTransaction) this.#connection.exec('ROLLBACK');
        throw error;
      }
    });
  }
}

/** Tries again as long as others are in the way, without blocking this process. */
async function patiently<T>(path: string, act: () => T): Promise<T> {
  const end = now() + PATIENCE;
  for (let milliseconds = 1; ; milliseconds = Math.min(2 * milliseconds, 50)) {
    try {
      return act();
    } catch (error) {
      if (!isBusy(error)) throw explain(error, path);
      if (now() > end) {
        throw unusable(
          path,
          `has been locked by another process for ${PATIENCE / 1000} s`,
          'It may be stopped (kill -CONT) or hang; see who has the file open: fuser -v.',
          error,
        );
      }
    }
    await pause(milliseconds * (0.5 + Math.random()));
  }
}
