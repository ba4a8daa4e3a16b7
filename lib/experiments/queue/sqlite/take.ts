import { randomBytes } from 'node:crypto';
import { closeSync } from 'node:fs';
import type { GPUOwnerError } from '../../../errors.ts';
import { bootId } from '../../../platform/index.ts';
import { MAX_DELAY_MS, MAX_STARTS, type WorkerInfo } from '../queue.ts';
import { endAttempt, presentAttempts, whyGone } from './attempts.ts';
import type { Database } from './database.ts';
import { DAMAGED, unusable } from './errors.ts';
import { awaitsForebears } from './forebears.ts';
import type { Held, LockFile } from './locks.ts';
import { type AttemptRecord, plain, type TaskRecord, taskOf } from './rows.ts';

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
