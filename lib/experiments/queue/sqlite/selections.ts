import { setImmediate as breathe } from 'node:timers/promises';
import { stringify, type Values } from '../../task/index.ts';
import type { Selection, State } from '../queue.ts';
import { completeTask, endAttempt } from './attempts.ts';
import type { Database } from './database.ts';
import type { AttemptRecord } from './rows.ts';

/** Tasks per transaction. */
const BATCH = 1_000;

interface Selected {
  number: number;
  name: string;
  state: State;
}

/** See `Queue.retry`. */
export function retry(database: Database, selection: Selection): Promise<string[]> {
  return forEach(database, selection, ({ number, state }) => {
    if (state === 'pending' || state === 'active') return false;
    if (state === 'completed') {
      database.run('INSERT OR IGNORE INTO retracted VALUES (:number)', { number });
      // A result that comes late would be one of before.
      database.run(`UPDATE attempt SET deadline = NULL WHERE task = :number AND outcome = 'lost'`, {
        number,
      });
    }
    database.run(
      `UPDATE task SET state = 'pending', starts = 0, due = NULL, error = NULL, ended = NULL, sequence = NULL, source = NULL,
         result = NULL WHERE number = :number`,
      { number },
    );
    return true;
  });
}

/** See `Queue.cancel`. */
export function cancel(database: Database, selection: Selection | 'all'): Promise<string[]> {
  return forEach(database, selection, ({ number, state }) => {
    if (state !== 'pending' && state !== 'active') return false;
    database.run(`UPDATE task SET state = 'cancelled', due = NULL, ended = :now WHERE number = :number`, {
      number,
      now: Date.now(),
    });
    const attempts = database.all<AttemptRecord>(
      'SELECT * FROM attempt WHERE task = :number AND outcome IS NULL',
      { number },
    );
    for (const attempt of attempts) endAttempt(database, attempt.number, 'cancelled', 'cancelled');
    return true;
  });
}

/** See `Queue.importResults`. A row that is to be taken out of its table is no result. */
export async function importResults(
  database: Database,
  rows: readonly { id: string; result: Values }[],
): Promise<boolean[]> {
  const adopted: boolean[] = [];
  for (let from = 0; from < rows.length; from += BATCH) {
    const batch = rows.slice(from, from + BATCH).map(({ id, result }) => ({ id, text: stringify(result) }));
    const done = await database.write(() =>
      batch.map(({ id, text }) => {
        const task = database.get<{ number: number }>(
          `SELECT number FROM task WHERE id = :id AND state NOT IN ('active', 'completed')
             AND number NOT IN (SELECT task FROM retracted)`,
          { id },
        );
        if (task !== undefined) completeTask(database, task.number, 'table', text);
        return task !== undefined;
      }),
    );
    adopted.push(...done);
  }
  return adopted;
}

/** @returns the names of those for which something was done */
async function forEach(
  database: Database,
  selection: Selection | 'all',
  act: (task: Selected) => boolean,
): Promise<string[]> {
  const names: string[] = [];
  const actOn = (tasks: readonly Selected[]) => {
    for (const task of tasks) if (act(task)) names.push(task.name);
  };
  if (selection !== 'all' && 'ids' in selection) {
    const ids = [...new Set(selection.ids)].filter((id) => !id.includes('\0'));
    for (let from = 0; from < ids.length; from += BATCH) {
      await database.write(() => {
        for (const id of ids.slice(from, from + BATCH)) {
          actOn(
            database.all<Selected>('SELECT number, name, state FROM task WHERE id = :id OR name = :id', {
              id,
            }),
          );
        }
      });
      await breathe();
    }
    return [...new Set(names)];
  }
  const condition = selection === 'all' ? '' : inState(selection.state);
  for (let after = 0; ; ) {
    const count = await database.write(() => {
      const tasks = database.all<Selected>(
        `SELECT number, name, state FROM task WHERE number > :after ${condition} ORDER BY number LIMIT ${BATCH}`,
        { after },
      );
      actOn(tasks);
      after = tasks.at(-1)?.number ?? after;
      return tasks.length;
    });
    if (count < BATCH) return names;
    await breathe();
  }
}

/** Told twice, so that the index of those that aren't pending is seen to do. */
export function inState(state: State): string {
  if (!/^[a-z]+$/.test(state)) throw new TypeError(`no state: ${state}`);
  return state === 'pending' ? `AND state = 'pending'` : `AND state = '${state}' AND state <> 'pending'`;
}
