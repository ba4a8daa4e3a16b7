import { setImmediate as breathe } from 'node:timers/promises';
import { sleep } from '../../../platform/index.ts';
import { seedOf, stringifyValue } from '../../task/index.ts';
import { type Batch, enqueueInBatches, type IncomingTask, type KeptTask } from '../enqueue.ts';
import { batchesOf, type Enqueued, type Queue, type Selection, type State } from '../queue.ts';
import { destinationsText, phaseInName, readDestinations, taskName } from '../records.ts';
import { completeTask, endAttempt } from './attempts.ts';
import type { Database } from './database.ts';
import { inState } from './queries.ts';
import type { AttemptRecord, TaskRecord } from './schema.ts';

/** Tasks per transaction: others wait for some ten milliseconds at most. */
const BATCH = 1_000;
/** A pause between transactions, for other writers. */
const PAUSE_MS = 2;

/** The methods of a queue that change many tasks, in transactions of some tasks each. */
export function bulkMethods(
  database: Database,
): Pick<Queue, 'enqueue' | 'importResults' | 'retry' | 'cancel' | 'forgetRetracted'> {
  return {
    enqueue: (tasks, options = {}) =>
      enqueueInBatches(tasks, options, { tasks: BATCH, bytes: Number.POSITIVE_INFINITY }, async (batch) => {
        const enqueued = await database.write(() => addBatch(database, batch));
        await sleep(PAUSE_MS);
        return enqueued;
      }),

    /** A row that is to be taken out of its table is no result. */
    async importResults(rows) {
      const imported: boolean[] = [];
      for (let from = 0; from < rows.length; from += BATCH) {
        const batch = rows
          .slice(from, from + BATCH)
          .map(({ id, result }) => ({ id, text: stringifyValue(result) }));
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
        imported.push(...done);
      }
      return imported;
    },

    retry: (selection) => forEachSelected(database, selection, retry),
    cancel: (selection) => forEachSelected(database, selection, cancel),

    forgetRetracted(ids) {
      return database.write(() => {
        for (const id of ids) {
          database.run('DELETE FROM retracted WHERE task = (SELECT number FROM task WHERE id = :id)', { id });
        }
      });
    },
  };
}

function retry(database: Database, { number, state }: Selected): boolean {
  if (state === 'pending' || state === 'active') return false;
  if (state === 'completed') database.run('INSERT OR IGNORE INTO retracted VALUES (:number)', { number });
  database.run(
    `UPDATE task SET state = 'pending', starts = 0, due = NULL, error = NULL, ended = NULL, sequence = NULL, source = NULL,
       result = NULL WHERE number = :number`,
    { number },
  );
  return true;
}

function cancel(database: Database, { number, state }: Selected): boolean {
  if (state !== 'pending' && state !== 'active') return false;
  const update = `UPDATE task SET state = 'cancelled', due = NULL, ended = :now WHERE number = :number`;
  database.run(update, { number, now: Date.now() });
  const select = 'SELECT * FROM attempt WHERE task = :number AND outcome IS NULL';
  for (const attempt of database.all<AttemptRecord>(select, { number }))
    endAttempt(database, attempt.number, 'cancelled', 'cancelled');
  return true;
}

type Known = Pick<TaskRecord, 'number' | 'name' | 'command' | 'places' | 'state' | 'retries'>;

/** In a transaction. */
function addBatch(database: Database, { tasks, merge }: Batch): Enqueued {
  const numbers = new Map<string, number>();
  const known = new Map<string, KeptTask>();
  for (const { id } of tasks) {
    const record = database.get<Known>(
      'SELECT number, name, command, places, state, retries FROM task WHERE id = :id',
      { id },
    );
    if (record === undefined) continue;
    const { number, name, command, places, state, retries } = record;
    numbers.set(id, number);
    known.set(id, { name, state, command, destinations: readDestinations(name, places), retries });
  }
  const { enqueued, fresh, changed } = merge(known);
  for (const [id, { command, destinations, retries }] of changed) {
    database.run(
      'UPDATE task SET command = :command, places = :places, retries = :retries WHERE number = :number',
      {
        number: numbers.get(id) as number,
        command,
        places: destinationsText(destinations),
        retries,
      },
    );
  }
  const counters = new Map<string, number>();
  for (const task of fresh.values()) addNew(database, task, counters);
  for (const [name, next] of counters)
    database.run('INSERT OR REPLACE INTO phase VALUES (:name, :next)', { name, next });
  return enqueued;
}

function addNew(
  database: Database,
  { id, parameters, spec, kept }: IncomingTask & { kept: KeptTask },
  counters: Map<string, number>,
): void {
  const phase = phaseInName(spec.phase);
  const select = 'SELECT next FROM phase WHERE name = :phase';
  let counter = counters.get(phase) ?? database.get<{ next: number }>(select, { phase })?.next ?? 0;
  const { command, destinations, retries } = kept;
  const values = { id, parameters, command, places: destinationsText(destinations), retries };
  const isAdded = (name: string) =>
    database.run(
      `INSERT INTO task (id, name, parameters, command, places, state, retries)
       VALUES (:id, :name, :parameters, :command, :places, 'pending', :retries) ON CONFLICT (name) DO NOTHING`,
      { ...values, name },
    ) > 0;
  // A phase `a` and one that is called `a_1` can come to the same name: then the next number has to do.
  while (!isAdded(taskName(phase, counter++, seedOf(spec.parameters))));
  counters.set(phase, counter);
}

interface Selected {
  number: number;
  name: string;
  state: State;
}

/** @returns the names of the tasks that were changed */
async function forEachSelected(
  database: Database,
  selection: Selection | 'all',
  act: (database: Database, task: Selected) => boolean,
): Promise<string[]> {
  const state = selection === 'all' || 'ids' in selection ? null : selection.state;
  const numbers = await database.read(() => {
    const select = (condition: string, values = {}) =>
      database.all<{ number: number }>(`SELECT number FROM task WHERE ${condition} ORDER BY number`, values);
    if (selection === 'all' || !('ids' in selection))
      return select(`true ${state === null ? '' : inState(state)}`);
    const ids = selection.ids.filter((id) => !id.includes('\0'));
    return ids.flatMap((id) => select('id = :id OR name = :id', { id }));
  });
  const names = new Set<string>();
  for (const batch of batchesOf(new Set(numbers.map(({ number }) => number)))) {
    await database.write(() => {
      for (const number of batch) {
        const sql = 'SELECT number, name, state FROM task WHERE number = :number';
        const task = database.get<Selected>(sql, { number });
        const isSelected = task !== undefined && (state === null || task.state === state);
        if (isSelected && act(database, task)) names.add(task.name);
      }
    });
    await breathe();
  }
  return [...names];
}
