import { randomBytes } from 'node:crypto';
import { closeSync } from 'node:fs';
import type { GPUOwnerError } from '../../../errors.ts';
import { bootId } from '../../../platform/index.ts';
import { MAX_DELAY_MS, MAX_STARTS, type WorkerInfo, type Failure, type State, type AttemptInfo } from '../queue.ts';
import type { Database } from './database.ts';
import { DAMAGED, unusable } from './errors.ts';
import { awaitsForebears, type Held, type LockFile } from './locks.ts';
import { type AttemptRecord, plain, type TaskRecord, taskOf } from './schema.ts';
import { stringify, type Values } from '../../task/index.ts';

/** How many numbers are tried for an attempt. Taken ones are in use only after an older copy of the database has come back. */
const TRIES = 10_000;

export interface Taken {
  token: string;
  task: TaskRecord;
  start: number;
  /** null: it has a lifetime instead. */
  lock: number | null;
}

/** Gives out the next task, in one transaction: whoever sees the attempt sees it locked. See `Queue.take`. */
export async function take(
  database: Database,
  locks: LockFile,
  taker: WorkerInfo,
  lifetime: number | undefined,
): Promise<Taken | null> {
  let held: Held | null = null;
  const letGo = () => {
    if (held !== null) closeSync(held.descriptor);
    held = null;
  };
  try {
    return await database.write(() => {
      letGo(); // of a transaction that is run again
      endLost(database, locks);
      if (awaitsForebears(database, locks)) return null;
      if (database.setting('pause') !== null) return null;
      const task = nextSoundTask(database);
      if (task === null) return null;

      let number =
        1 + (database.get<{ last: number | null }>('SELECT max(number) AS last FROM attempt')?.last ?? 0);
      if (lifetime === undefined) ({ number, held } = lockNext(locks, number));
      const token = `${number}-${randomBytes(12).toString('hex')}`;
      const start = task.starts + 1;
      const now = Date.now();
      database.run(
        `INSERT INTO attempt (number, token, task, start, worker, host, pid, gpus, boot, inode, since, deadline)
         VALUES (:number, :token, :task, :start, :worker, :host, :pid, :gpus, :boot, :inode, :now, :deadline)`,
        {
          number,
          token,
          task: task.number,
          start,
          worker: plain(taker.worker),
          host: plain(taker.host),
          pid: taker.pid,
          gpus: JSON.stringify(taker.gpus),
          boot: bootId(),
          inode: held?.inode ?? '',
          now,
          deadline: lifetime === undefined ? null : now + Math.ceil(lifetime),
        },
      );
      const changed = database.run(
        `UPDATE task SET state = 'active', starts = :start, due = NULL WHERE number = :number AND state = 'pending'`,
        { number: task.number, start },
      );
      if (changed !== 1) throw disagreeing(database);
      return { token, task, start, lock: held?.descriptor ?? null };
    });
  } catch (error) {
    letGo();
    throw error;
  }
}

/** Damaged ones have failed: nobody can run them, and everybody else is to go on. */
function nextSoundTask(database: Database): TaskRecord | null {
  let failed: number | null = null;
  for (;;) {
    const record = nextTask(database);
    if (record === undefined) return null;
    const { number } = record;
    const { damage } = taskOf(record);
    if (damage === undefined) return record;
    if (number === failed) throw disagreeing(database);
    failTask(database, number, damage, false);
    failed = number;
  }
}

/** The index of pending tasks names one that isn't pending. SQLite answers from the index alone, so the row must tell. */
function disagreeing({ path }: Database): GPUOwnerError {
  return unusable(path, 'is damaged: its index of pending tasks is wrong', DAMAGED);
}

function lockNext(locks: LockFile, first: number): { number: number; held: Held } {
  for (let number = first; number < first + TRIES; number++) {
    const held = locks.take(number);
    if (held !== null) return { number, held };
  }
  throw unusable(locks.path, 'is locked throughout by other processes', 'See who has it open: fuser -v.');
}

/**
 * Fresh ones first, then in the order of arrival; not while something of an earlier attempt lives. Whose time lies further ahead than it
 * may was given it before the clock was set back.
 */
export function nextTask(database: Database): TaskRecord | undefined {
  const now = Date.now();
  return database.get<TaskRecord>(
    `SELECT * FROM task INDEXED BY task_pending
     WHERE state = 'pending' AND (due IS NULL OR due <= :now OR due > :latest)
       AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.task = task.number AND gone = 0)
     ORDER BY starts, number LIMIT 1`,
    { now, latest: now + MAX_DELAY_MS },
  );
}

/** Ends the attempts whose processes went without a word. Inside of a transaction. */
export function endLost(database: Database, locks: LockFile): void {
  for (const attempt of presentAttempts(database)) {
    const why = whyGone(attempt, locks);
    if (why === null) continue;
    if (attempt.outcome === null) endLostOne(database, attempt, why);
    database.run('UPDATE attempt SET gone = 1 WHERE number = :number', { number: attempt.number });
  }
}

function endLostOne(
  database: Database,
  attempt: AttemptRecord,
  why: 'rebooted' | 'unlocked' | 'overdue',
): void {
  const pid = attempt.pid === 0 ? '' : `PID ${attempt.pid} `; // 0: it gave none
  const who = `worker ${attempt.worker} (${pid}on ${attempt.host})`;
  const error = {
    rebooted: `the machine was restarted under ${who}`,
    unlocked: `${who} ended without a word`,
    overdue: `${who} has not been heard of in time`,
  }[why];
  endAttempt(database, attempt.number, 'lost', error);
  // Not the task's fault.
  if (why === 'rebooted') putBack(database, attempt.task, error, null);
  else failTask(database, attempt.task, error, true);
}

/** The start doesn't count. @param due when it may be given out again, in ms since the epoch; null: at once */
export function putBack(database: Database, number: number, error: string, due: number | null): void {
  database.run(
    `UPDATE task SET state = 'pending', starts = max(starts - 1, 0), error = :error, due = :due WHERE number = :number`,
    { number, error: plain(error), due },
  );
}

/** @returns what became of it */
export function failTask(
  database: Database,
  number: number,
  error: string,
  retry: boolean,
): 'pending' | 'failed' {
  const record = database.get<{ starts: number }>('SELECT starts FROM task WHERE number = :number', {
    number,
  });
  const state = retry && (record?.starts ?? 0) < MAX_STARTS ? 'pending' : 'failed';
  const ended = state === 'failed' ? Date.now() : null;
  database.run('UPDATE task SET state = :state, error = :error, ended = :ended WHERE number = :number', {
    number,
    state,
    error: plain(error),
    ended,
  });
  return state;
}

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

/** Attempts of which something may still live, the task's or not: nobody else gets their task. Inside of a transaction. */
export function presentAttempts(database: Database): AttemptRecord[] {
  return database.all<AttemptRecord>(
    'SELECT * FROM attempt INDEXED BY attempt_there WHERE gone = 0 ORDER BY number',
  );
}

export function findAttempt(database: Database, token: string): AttemptRecord | undefined {
  if (token.includes('\0')) return undefined;
  return database.get<AttemptRecord>('SELECT * FROM attempt WHERE token = :token', { token });
}

/** Why nothing of an attempt lives any longer; null: something does, or may. Takes nothing. */
export function whyGone(attempt: AttemptRecord, locks: LockFile): 'rebooted' | 'unlocked' | 'overdue' | null {
  if (attempt.deadline !== null) return attempt.deadline <= Date.now() ? 'overdue' : null;
  // Names of boots are unlike; where they can't be read, the lock decides.
  if (attempt.boot !== bootId()) return 'rebooted';
  return locks.isTaken(attempt.number, attempt.inode) ? null : 'unlocked';
}

/** The task isn't this attempt's any longer, for whatever reason. */
export function endAttempt(
  database: Database,
  number: number,
  outcome: NonNullable<AttemptInfo['outcome']>,
  error: string | null,
): void {
  // Without a lock, nothing shows whether something of it lives.
  database.run(
    `UPDATE attempt SET outcome = :outcome, ended = :now, error = :error, gone = deadline IS NOT NULL
     WHERE number = :number`,
    { number, outcome, error: error === null ? null : plain(error), now: Date.now() },
  );
}

/** The next number in the order of completion. */
function nextSequence(database: Database): number {
  const sequence = Number(database.setting('sequence') ?? 0) + 1;
  database.set('sequence', String(sequence));
  return sequence;
}

export function completeTask(
  database: Database,
  number: number,
  source: 'worker' | 'table',
  result: string,
): void {
  database.run(
    `UPDATE task SET state = 'completed', due = NULL, error = NULL, ended = :now, sequence = :sequence, source = :source,
       result = :result WHERE number = :number`,
    { number, source, result, now: Date.now(), sequence: nextSequence(database) },
  );
}
