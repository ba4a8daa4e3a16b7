import type { DatabaseSyncInstance } from '@photostructure/sqlite';
import { GPUOwnerError } from '../../../errors.ts';
import { sanitize } from '../../../platform/index.ts';
import type { AttemptInfo, State } from '../queue.ts';

/** Stands in the header of the file: 'gpuQ'. Databases of other programs have another value, or none. */
const APPLICATION = 0x67707551;

/** Stands in `PRAGMA user_version`. */
const VERSION = 1;

/**
 * The schema.
 *
 * - `task.number` is the order of arrival, `sequence` the order of completion. `due`: not given out before this time, in ms.
 * - `attempt.number` is its byte in the lock file. `outcome` is null as long as the attempt has the task.
 *   `gone` is 1 once nothing of the attempt lives. `deadline`, in ms: attempts with a lifetime have one instead of a lock.
 *   Attempts on other machines have both, and live until their lock and this time are gone.
 * - `task.retries`: how often it is started again by itself.
 * - Parameters, results, commands and destinations (`places`: `[[phase, directory], …]`) are JSON, numbers as they were written.
 */
const SCHEMA = `
  CREATE TABLE task (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    parameters TEXT NOT NULL,
    command TEXT NOT NULL,
    places TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'active', 'completed', 'failed', 'cancelled')),
    starts INTEGER NOT NULL DEFAULT 0,
    retries INTEGER NOT NULL,
    due INTEGER,
    error TEXT,
    ended INTEGER,
    sequence INTEGER,
    source TEXT,
    result TEXT
  ) STRICT;
  CREATE INDEX task_pending ON task (starts, number) WHERE state = 'pending';
  CREATE INDEX task_due ON task (due) WHERE due IS NOT NULL;
  CREATE INDEX task_state ON task (state, number) WHERE state <> 'pending';
  CREATE UNIQUE INDEX task_sequence ON task (sequence) WHERE sequence IS NOT NULL;

  CREATE TABLE attempt (
    number INTEGER PRIMARY KEY,
    token TEXT NOT NULL UNIQUE,
    task INTEGER NOT NULL REFERENCES task,
    start INTEGER NOT NULL,
    worker TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    gpus TEXT NOT NULL,
    boot TEXT NOT NULL,
    locked INTEGER NOT NULL,
    since INTEGER NOT NULL,
    deadline INTEGER,
    ended INTEGER,
    outcome TEXT CHECK (outcome IN ('completed', 'failed', 'given-back', 'lost', 'cancelled')),
    error TEXT,
    gone INTEGER NOT NULL DEFAULT 0,
    log TEXT,
    log_from INTEGER,
    log_to INTEGER
  ) STRICT;
  CREATE UNIQUE INDEX attempt_active ON attempt (task) WHERE outcome IS NULL;
  CREATE INDEX attempt_there ON attempt (task) WHERE gone = 0;
  CREATE INDEX attempt_task ON attempt (task);

  CREATE TABLE retracted (task INTEGER PRIMARY KEY REFERENCES task) STRICT;
  CREATE TABLE phase (name TEXT PRIMARY KEY, next INTEGER NOT NULL) STRICT, WITHOUT ROWID;
  CREATE TABLE setting (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
`;

/**
 * Makes the schema in a new database, and checks a known one.
 * @throws ERR_QUEUE for databases of other programs and of other versions; errors of SQLite as they come
 */
export function makeSchema(database: DatabaseSyncInstance, path: string): void {
  // Reads must be of one moment: another process may be making the schema.
  if (transact(database, 'BEGIN', () => isMade(database, path))) return;
  transact(database, 'BEGIN IMMEDIATE', () => {
    if (isMade(database, path)) return;
    database.exec(SCHEMA);
    database.exec(`PRAGMA application_id = ${APPLICATION}; PRAGMA user_version = ${VERSION}`);
  });
}

function transact<T>(database: DatabaseSyncInstance, begin: string, transaction: () => T): T {
  database.exec(begin);
  try {
    const result = transaction();
    database.exec('COMMIT');
    return result;
  } catch (error) {
    if (database.isTransaction) database.exec('ROLLBACK');
    throw error;
  }
}

/** Whether the database has the schema. An empty one hasn't. @throws ERR_QUEUE */
function isMade(database: DatabaseSyncInstance, path: string): boolean {
  const application = pragma(database, 'application_id');
  const version = pragma(database, 'user_version');
  const tables = database.prepare('SELECT count(*) AS n FROM sqlite_schema').get() as { n: number };
  if (application === 0 && version === 0 && tables.n === 0) return false;
  if (application === APPLICATION && version === VERSION) return true;
  const problem =
    application === APPLICATION
      ? `the queue ${path} is of another gpu-owner (its version is ${version}, this one has ${VERSION}). Use that one, or another file:`
      : `${path} is a database of another program, not a queue. Name another file:`;
  throw new GPUOwnerError('ERR_QUEUE', sanitize(`${problem} --queue sqlite:PATH.`, 1_000));
}

function pragma(database: DatabaseSyncInstance, name: string): number {
  return Object.values(database.prepare(`PRAGMA ${name}`).get() as Record<string, number>)[0] as number;
}

/** A row of table `task`. */
export interface TaskRecord {
  number: number;
  id: string;
  name: string;
  parameters: string;
  command: string;
  places: string;
  state: State;
  starts: number;
  retries: number;
  due: number | null;
  error: string | null;
  ended: number | null;
  sequence: number | null;
  source: 'worker' | 'table' | null;
}

/** The columns of table `task`, without the result, which may be large. */
export const TASK =
  'number, id, name, parameters, command, places, state, starts, retries, due, error, ended, sequence, source';

/** A row of table `attempt`. */
export interface AttemptRecord {
  number: number;
  token: string;
  task: number;
  start: number;
  worker: string;
  host: string;
  pid: number;
  gpus: string;
  boot: string;
  locked: 0 | 1;
  since: number;
  deadline: number | null;
  ended: number | null;
  outcome: AttemptInfo['outcome'];
  error: string | null;
  gone: 0 | 1;
  log: string | null;
  log_from: number | null;
  log_to: number | null;
}

/** Replaces NULs: for SQLite's functions, and so for people's tools, a text ends at the first one. */
export function withoutNUL(text: string): string {
  return text.replaceAll('\0', '\ufffd');
}
