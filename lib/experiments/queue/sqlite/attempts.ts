import { bootId } from '../../../platform/index.ts';
import type { AttemptInfo } from '../queue.ts';
import type { Database } from './database.ts';
import type { LockFile } from './locks.ts';
import { type AttemptRecord, plain } from './rows.ts';

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
