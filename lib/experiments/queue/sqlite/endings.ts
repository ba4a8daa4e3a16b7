import { stringify, type Values } from '../../task/index.ts';
import { type Failure, MAX_DELAY_MS, type State } from '../queue.ts';
import { completeTask, endAttempt, findAttempt } from './attempts.ts';
import type { Database } from './database.ts';
import { type AttemptRecord, plain, type TaskRecord } from './rows.ts';
import { failTask, putBack } from './take.ts';

/** What attempts say of themselves; each is one transaction. See `Queue` for what they promise. */

export function submit(database: Database, token: string, result: Values): Promise<boolean> {
  const text = stringify(result);
  return database.write(() => {
    const attempt = findAttempt(database, token);
    if (attempt === undefined || !mayComplete(database, attempt)) return false;
    database.run('UPDATE attempt SET result = :text WHERE number = :number', {
      number: attempt.number,
      text,
    });
    return true;
  });
}

export function complete(database: Database, token: string, result: Values | null): Promise<boolean> {
  const given = result === null ? null : stringify(result);
  return database.write(() => {
    const attempt = findAttempt(database, token);
    if (attempt === undefined) return false;
    if (attempt.outcome === 'completed') return isRepeated(database, attempt, given);
    if (!mayComplete(database, attempt)) return false;
    // Of a late result: whoever has the task now needn't go on.
    const other = database.get<AttemptRecord>(
      'SELECT * FROM attempt WHERE task = :task AND outcome IS NULL AND number <> :number',
      { task: attempt.task, number: attempt.number },
    );
    if (other !== undefined) {
      endAttempt(
        database,
        other.number,
        'cancelled',
        `worker ${attempt.worker} came late, but with a result`,
      );
    }
    endAttempt(database, attempt.number, 'completed', null);
    completeTask(database, attempt.task, 'worker', given ?? attempt.result ?? '{}');
    return true;
  });
}

export function fail(database: Database, token: string, { error, retry }: Failure): Promise<State | null> {
  return database.write(() => {
    const attempt = findAttempt(database, token);
    if (attempt === undefined || attempt.outcome !== null) return null;
    endAttempt(database, attempt.number, 'failed', error);
    return failTask(database, attempt.task, error, retry);
  });
}

export function requeue(database: Database, token: string, why: string, delay: number): Promise<boolean> {
  return database.write(() => {
    const attempt = findAttempt(database, token);
    if (attempt === undefined || attempt.outcome !== null) return false;
    endAttempt(database, attempt.number, 'given-back', why);
    putBack(
      database,
      attempt.task,
      why,
      delay > 0 ? Date.now() + Math.min(Math.ceil(delay), MAX_DELAY_MS) : null,
    );
    return true;
  });
}

/** How long a note waits for something else to be written, in ms. */
const NOTE_DELAY = 300;

export function setLog(
  database: Database,
  token: string,
  { path, from, to }: { path: string; from: number; to: number | null },
): Promise<void> {
  return database.writeAlong(() => {
    const attempt = findAttempt(database, token);
    if (attempt === undefined) return;
    database.run('UPDATE attempt SET log = :path, log_from = :from, log_to = :to WHERE number = :number', {
      number: attempt.number,
      path: plain(path),
      from,
      to,
    });
  }, NOTE_DELAY);
}

/** The task is its own, or it gave no sign of life in time and the task has still no result. */
function mayComplete(database: Database, attempt: AttemptRecord): boolean {
  if (attempt.outcome === null) return true;
  if (attempt.outcome !== 'lost' || attempt.deadline === null) return false;
  const { state } = taskOfAttempt(database, attempt);
  return state === 'pending' || state === 'active' || state === 'failed';
}

/** Whether it said the same before, and didn't hear the answer. */
function isRepeated(database: Database, attempt: AttemptRecord, result: string | null): boolean {
  const task = taskOfAttempt(database, attempt);
  const last = database.get<{ number: number }>(
    `SELECT max(number) AS number FROM attempt WHERE task = :task AND outcome = 'completed'`,
    { task: attempt.task },
  );
  return (
    task.state === 'completed' &&
    task.source === 'worker' &&
    last?.number === attempt.number &&
    (result === null || result === task.result)
  );
}

function taskOfAttempt(
  database: Database,
  attempt: AttemptRecord,
): Pick<TaskRecord, 'state' | 'source'> & { result: string | null } {
  const sql = 'SELECT state, source, result FROM task WHERE number = :task';
  return database.get(sql, { task: attempt.task }) as never;
}
