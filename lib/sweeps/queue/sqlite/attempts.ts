import { randomBytes } from 'node:crypto';
import { closeSync } from 'node:fs';
import { bootId } from '../../../platform/index.ts';
import { stringifyValue } from '../../task/index.ts';
import {
  type Attempt,
  type AttemptInfo,
  MAX_DELAY_MS,
  NO_PID,
  type Queue,
  type State,
  type TaskFailure,
  unusable,
  type WorkerInfo,
} from '../queue.ts';
import { taskOf } from '../records.ts';
import type { Database } from './database.ts';
import type { LockFile } from './locks.ts';
import { type AttemptRecord, type TaskRecord, withoutNUL } from './schema.ts';

/** How many numbers are tried for an attempt. Numbers are in use only after an older copy of the database was put back. */
const MAX_TRIES = 10_000;

/** The attempts of this process: their signals and the descriptors of their locks. */
export interface OpenAttempts {
  /** @param lock its descriptor, which is handed over */
  add(token: string, lock: number | null): AbortSignal;
  remove(token: string): void;
}

/** The methods of a queue that begin and end attempts. Each is one transaction. */
export function attemptMethods(
  database: Database,
  locks: LockFile,
  open: OpenAttempts,
): Pick<Queue, 'take' | 'prolong' | 'endLost' | 'setLog' | 'complete' | 'fail' | 'requeue'> {
  /** Ends the attempt, whatever the answer: its process has nothing more to do with the task. */
  const ended = <T>(token: string, answer: T): T => {
    open.remove(token);
    return answer;
  };
  return {
    async take(worker, { lifetime, outlives } = {}) {
      const taken = await take(database, locks, worker, { lifetime, outlives });
      if (taken === null) return null;
      const { lock, ...attempt } = taken;
      return {
        ...attempt,
        descriptors: lock === null ? [] : [lock],
        signal: open.add(attempt.token, lock),
        deadline: null,
      };
    },

    prolong(tokens, outlives) {
      return database.write(() => {
        const deadline = Date.now() + Math.ceil(outlives);
        // Nothing lives of an attempt that has none any more: its end and this may have been on their way at the same time.
        const update =
          'UPDATE attempt SET deadline = :deadline WHERE token = :token AND deadline IS NOT NULL';
        for (const token of tokens) database.run(update, { token, deadline });
      });
    },

    async endLost() {
      if ((await database.read(() => lostAttempts(database, locks))).length > 0)
        await database.write(() => endLost(database, locks));
    },

    setLog(token, { path, from, to }) {
      return database.write(() => {
        const update = 'UPDATE attempt SET log = :path, log_from = :from, log_to = :to WHERE token = :token';
        database.run(update, { token: withoutNUL(token), path: withoutNUL(path), from, to });
      });
    },

    async complete(token, result) {
      const text = stringifyValue(result ?? {});
      return ended(token, await database.write(() => complete(database, token, text)));
    },

    async fail(token, failure) {
      return ended(token, await database.write(() => fail(database, token, failure)));
    },

    async requeue(token, why, delay = 0) {
      const due = delay > 0 ? Date.now() + Math.min(Math.ceil(delay), MAX_DELAY_MS) : null;
      return ended(token, await database.write(() => requeue(database, token, why, due)));
    },
  };
}

interface Taken extends Pick<Attempt, 'token' | 'task' | 'start' | 'isOnce'> {
  /** null: it has a lifetime instead. */
  lock: number | null;
}

/** Gives out the next task. The attempt is locked before the commit: a process that sees it sees it locked. */
async function take(
  database: Database,
  locks: LockFile,
  worker: WorkerInfo,
  { lifetime, outlives }: { lifetime: number | undefined; outlives: number | undefined },
): Promise<Taken | null> {
  const left = lifetime ?? outlives;
  let lock: number | null = null;
  const unlock = () => {
    if (lock !== null) closeSync(lock);
    lock = null;
  };
  try {
    return await database.write(() => {
      unlock(); // the transaction may run again
      endLost(database, locks);
      if (database.setting('pause') !== null) return null;
      const task = nextTask(database);
      if (task === undefined) return null;

      let number =
        1 + (database.get<{ last: number | null }>('SELECT max(number) AS last FROM attempt')?.last ?? 0);
      if (lifetime === undefined) ({ number, lock } = lockNext(locks, number));
      const token = `${number}-${randomBytes(12).toString('hex')}`;
      const start = task.starts + 1;
      const now = Date.now();
      database.run(
        `INSERT INTO attempt (number, token, task, start, worker, host, pid, gpus, boot, locked, since, deadline)
         VALUES (:number, :token, :task, :start, :worker, :host, :pid, :gpus, :boot, :locked, :now, :deadline)`,
        {
          number,
          token,
          task: task.number,
          start,
          worker: withoutNUL(worker.name),
          host: withoutNUL(worker.host),
          pid: worker.pid,
          gpus: JSON.stringify(worker.gpus),
          boot: bootId(),
          locked: lock === null ? 0 : 1,
          now,
          deadline: left === undefined ? null : now + Math.ceil(left),
        },
      );
      database.run(`UPDATE task SET state = 'active', starts = :start, due = NULL WHERE number = :number`, {
        number: task.number,
        start,
      });
      return { token, task: taskOf(task), start, isOnce: task.retries === 0, lock };
    });
  } catch (error) {
    unlock();
    throw error;
  }
}

function lockNext(locks: LockFile, first: number): { number: number; lock: number } {
  for (let number = first; number < first + MAX_TRIES; number++) {
    const lock = locks.take(number);
    if (lock !== null) return { number, lock };
  }
  throw unusable(locks.path, 'is locked completely by other processes', 'fuser -v shows which.');
}

/**
 * The next task: fresh ones first, then in the order of arrival, and not while anything of an earlier attempt lives. A due time beyond
 * the maximum was set before the clock was set back.
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

function fail(database: Database, token: string, { error, retry }: TaskFailure): State | null {
  const attempt = findEnded(database, token);
  if (attempt === undefined || attempt.outcome !== null) return null;
  endAttempt(database, attempt.number, 'failed', error);
  return failTask(database, attempt.task, error, retry);
}

function requeue(database: Database, token: string, why: string, due: number | null): boolean {
  const attempt = findEnded(database, token);
  if (attempt === undefined || attempt.outcome !== null) return false;
  endAttempt(database, attempt.number, 'given-back', why);
  requeueTask(database, attempt.task, why, due);
  return true;
}

function complete(database: Database, token: string, result: string): boolean {
  const attempt = findEnded(database, token);
  if (attempt === undefined) return false;
  if (attempt.outcome === 'completed') return isResult(database, attempt, result);
  if (attempt.outcome !== null) return false;
  endAttempt(database, attempt.number, 'completed', null);
  completeTask(database, attempt.task, 'worker', result);
  return true;
}

/** Whether the task has this result of this attempt: then it was completed before, and the answer was lost. */
function isResult(database: Database, { task, number }: AttemptRecord, result: string): boolean {
  const select = `SELECT 1 FROM task WHERE number = :task AND state = 'completed' AND source = 'worker' AND result = :result
    AND NOT EXISTS (SELECT 1 FROM attempt WHERE task = :task AND number > :number)`;
  return database.get(select, { task, number, result }) !== undefined;
}

/**
 * Attempts of which a process may still live: no other worker gets their task, whatever their outcome. Inside of a transaction.
 */
function presentAttempts(database: Database): AttemptRecord[] {
  return database.all<AttemptRecord>(
    'SELECT * FROM attempt INDEXED BY attempt_there WHERE gone = 0 ORDER BY number',
  );
}

/** The numbers of attempts that have ended without a record of it: their tasks can be given out again. */
export function lostAttempts(database: Database, locks: LockFile): number[] {
  return presentAttempts(database)
    .filter((attempt) => whyEnded(attempt, locks) !== null)
    .map(({ number }) => number);
}

export function findAttempt(database: Database, token: string): AttemptRecord | undefined {
  if (token.includes('\0')) return undefined;
  return database.get<AttemptRecord>('SELECT * FROM attempt WHERE token = :token', { token });
}

/** The attempt of which nothing lives by now, as its process says: from here on, its lock alone decides. Inside of a transaction. */
function findEnded(database: Database, token: string): AttemptRecord | undefined {
  const attempt = findAttempt(database, token);
  if (attempt !== undefined && attempt.deadline !== null && attempt.locked === 1)
    database.run('UPDATE attempt SET deadline = NULL WHERE number = :number', { number: attempt.number });
  return attempt;
}

/** Why nothing of an attempt lives any longer; null: something does, or may. Takes no lock. */
export function whyEnded(
  attempt: AttemptRecord,
  locks: LockFile,
): 'rebooted' | 'unlocked' | 'overdue' | null {
  if (attempt.deadline !== null && attempt.deadline > Date.now()) return null;
  if (attempt.locked === 0) return 'overdue';
  // Boot ids differ between boots. Where they can't be read, the lock decides.
  if (attempt.boot !== bootId()) return 'rebooted';
  return locks.isTaken(attempt.number) ? null : 'unlocked';
}

/** Ends the attempts whose processes ended silently. Inside of a transaction. */
function endLost(database: Database, locks: LockFile): void {
  for (const attempt of presentAttempts(database)) {
    const why = whyEnded(attempt, locks);
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
  const pid = attempt.pid === NO_PID ? '' : `PID ${attempt.pid} `;
  const who = `worker ${attempt.worker} (${pid}on ${attempt.host})`;
  const error = {
    rebooted: `the machine was restarted while ${who} ran it`,
    unlocked: `${who} ended silently`,
    overdue: `${who} sent no message in time`,
  }[why];
  endAttempt(database, attempt.number, 'lost', error);
  // A reboot is not the task's fault.
  if (why === 'rebooted' && attemptsAgain(database, attempt.task))
    requeueTask(database, attempt.task, error, null);
  else failTask(database, attempt.task, error, true);
}

/** Takes the task from an attempt, for whatever reason. */
export function endAttempt(
  database: Database,
  number: number,
  outcome: NonNullable<AttemptInfo['outcome']>,
  error: string | null,
): void {
  // Without a lock, nothing shows whether something of it lives.
  database.run(
    `UPDATE attempt SET outcome = :outcome, ended = :now, error = :error, gone = NOT locked
     WHERE number = :number`,
    { number, outcome, error: error === null ? null : withoutNUL(error), now: Date.now() },
  );
}

export function completeTask(
  database: Database,
  number: number,
  source: 'worker' | 'table',
  result: string,
): void {
  const sequence = Number(database.setting('sequence') ?? 0) + 1;
  database.set('sequence', String(sequence));
  database.run(
    `UPDATE task SET state = 'completed', due = NULL, error = NULL, ended = :now, sequence = :sequence, source = :source,
       result = :result WHERE number = :number`,
    { number, source, result, now: Date.now(), sequence },
  );
}

/** Makes a task pending again without counting its start. @param due when it may be given out, in ms since the epoch; null: at once */
function requeueTask(database: Database, number: number, error: string, due: number | null): void {
  database.run(
    `UPDATE task SET state = 'pending', starts = max(starts - 1, 0), error = :error, due = :due WHERE number = :number`,
    { number, error: withoutNUL(error), due },
  );
}

/** Whether a task is started again by itself. */
function attemptsAgain(database: Database, number: number): boolean {
  return database.get('SELECT 1 FROM task WHERE number = :number AND retries = 0', { number }) === undefined;
}

/** @returns the new state of the task */
function failTask(database: Database, number: number, error: string, retry: boolean): 'pending' | 'failed' {
  const record = database.get<Pick<TaskRecord, 'starts' | 'retries'>>(
    'SELECT starts, retries FROM task WHERE number = :number',
    { number },
  );
  const mayStart = record !== undefined && record.starts <= record.retries;
  const state = retry && mayStart ? 'pending' : 'failed';
  const ended = state === 'failed' ? Date.now() : null;
  database.run('UPDATE task SET state = :state, error = :error, ended = :ended WHERE number = :number', {
    number,
    state,
    error: withoutNUL(error),
    ended,
  });
  return state;
}
