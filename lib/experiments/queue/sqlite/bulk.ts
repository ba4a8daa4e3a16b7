import { setImmediate as breathe, setTimeout as pause } from 'node:timers/promises';
import {
  type Destination,
  seedOf,
  stringifyValue,
  type TaskSpec,
  taskId,
  type Value,
} from '../../task/index.ts';
import { type Enqueued, LEAST_NEEDS, type Needs, type Queue, type Selection, type State } from '../queue.ts';
import {
  commandText,
  conflict,
  conflictError,
  isCommand,
  MAX_CONFLICTS,
  NO_COMMAND_TEXT,
  phaseInName,
  readCount,
  readDestinations,
  taskName,
} from '../records.ts';
import { completeTask, endAttempt } from './attempts.ts';
import type { Database } from './database.ts';
import { inState } from './queries.ts';
import { type AttemptRecord, destinationsText, type TaskRecord } from './schema.ts';

/** Tasks per transaction: others wait for some ten milliseconds at most. */
const BATCH = 1_000;
/** A pause between transactions, for other writers. */
const PAUSE_MS = 2;

/** The methods of a queue that change many tasks, in transactions of some tasks each. */
export function bulkMethods(
  database: Database,
): Pick<Queue, 'enqueue' | 'importResults' | 'retry' | 'cancel' | 'giveUp' | 'forgetRetracted'> {
  return {
    async enqueue(tasks, { replaceCommands = false, needs = {}, signal } = {}) {
      const total: Enqueued = { added: 0, known: 0, placed: 0 };
      const seen = replaceCommands ? new Set<string>() : null;
      for await (const batch of batches(tasks)) {
        signal?.throwIfAborted();
        const { added, known, placed, ids } = await database.write(() =>
          new Batch(database, seen, needs).add(batch),
        );
        total.added += added;
        total.known += known;
        total.placed += placed;
        for (const id of ids) seen?.add(id);
        await pause(PAUSE_MS);
      }
      return total;
    },

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

    /** The kernel tells which attempts live. */
    giveUp: async () => [],

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
  if (state === 'completed') {
    database.run('INSERT OR IGNORE INTO retracted VALUES (:number)', { number });
    // A late result would be one from before the retry.
    const update = `UPDATE attempt SET deadline = NULL WHERE task = :number AND outcome = 'lost'`;
    database.run(update, { number });
  }
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

interface Prepared {
  id: string;
  parameters: string;
  command: string;
  seed: Value;
  spec: TaskSpec;
}

async function* batches(tasks: Iterable<TaskSpec> | AsyncIterable<TaskSpec>): AsyncGenerator<Prepared[]> {
  let batch: Prepared[] = [];
  for await (const spec of tasks) {
    if (batch.push(prepare(spec)) < BATCH) continue;
    yield batch;
    batch = [];
  }
  if (batch.length > 0) yield batch;
}

/** Runs outside of the transaction, which must be short. */
function prepare(spec: TaskSpec): Prepared {
  const { parameters } = spec;
  return {
    id: taskId(parameters),
    parameters: stringifyValue(parameters),
    command: commandText(spec.command),
    seed: seedOf(parameters),
    spec,
  };
}

type Known = Pick<TaskRecord, 'number' | 'name' | 'command' | 'places' | 'state'>;

/** Adds the tasks of one transaction. */
class Batch {
  readonly #database: Database;
  /** Tasks of earlier batches of the same call, if commands may be replaced: two tasks of one sweep must not replace each other's. */
  readonly #earlier: ReadonlySet<string> | null;
  readonly #needs: Partial<Needs>;
  readonly #ids = new Set<string>();
  readonly #counters = new Map<string, number>();
  readonly #conflicts: string[] = [];
  #conflictCount = 0;
  readonly #done = { added: 0, known: 0, placed: 0 };

  constructor(database: Database, earlier: ReadonlySet<string> | null, needs: Partial<Needs>) {
    this.#database = database;
    this.#earlier = earlier;
    this.#needs = needs;
  }

  add(batch: readonly Prepared[]): Enqueued & { ids: ReadonlySet<string> } {
    for (const task of batch) {
      const known = this.#database.get<Known>(
        'SELECT number, name, command, places, state FROM task WHERE id = :id',
        { id: task.id },
      );
      if (known === undefined) this.#addNew(task);
      else this.#addKnown(known, task);
      this.#ids.add(task.id);
    }
    if (this.#conflictCount > 0) throw conflictError(this.#conflicts, this.#conflictCount);
    for (const [name, next] of this.#counters) {
      this.#database.run('INSERT OR REPLACE INTO phase VALUES (:name, :next)', { name, next });
    }
    return { ...this.#done, ids: this.#ids };
  }

  #addNew({ id, parameters, command, seed, spec }: Prepared): void {
    const phase = phaseInName(spec.phase);
    const places = destinationsText([spec]);
    let counter =
      this.#counters.get(phase) ??
      readCount(
        this.#database.get<{ next: number }>('SELECT next FROM phase WHERE name = :phase', { phase })?.next,
      );
    // A phase `a` and one that is called `a_1` can come to the same name: then the next number has to do.
    while (
      this.#database.run(
        `INSERT INTO task (id, name, parameters, command, places, state, gpus, memory, once)
         VALUES (:id, :name, :parameters, :command, :places, 'pending', :gpus, :memory, :once) ON CONFLICT (name) DO NOTHING`,
        {
          id,
          name: spec.name ?? taskName(phase, counter++, seed),
          parameters,
          command,
          places,
          ...LEAST_NEEDS,
          ...this.#needs,
          once: spec.rerun === 'never' ? 1 : 0,
        },
      ) === 0
    );
    this.#counters.set(phase, counter);
    this.#done.added++;
  }

  #addKnown({ number, name, command, places, state }: Known, task: Prepared): void {
    this.#done.known++;
    if (task.command !== command && task.command !== NO_COMMAND_TEXT) {
      const hasNone = command === NO_COMMAND_TEXT || !isCommand(command); // the record may be damaged
      const mayReplace = this.#earlier !== null && !this.#earlier.has(task.id) && !this.#ids.has(task.id);
      if (!hasNone && !mayReplace) {
        this.#conflictCount++;
        if (this.#conflicts.length < MAX_CONFLICTS) {
          this.#conflicts.push(conflict(name, command, task.command));
        }
        return;
      }
      if (hasNone || (state !== 'active' && state !== 'completed')) {
        const { command: replacement } = task;
        this.#database.run('UPDATE task SET command = :replacement WHERE number = :number', {
          number,
          replacement,
        });
      }
    }
    this.#changeNeeds(number);
    if (task.spec.rerun !== undefined) {
      const once = task.spec.rerun === 'never' ? 1 : 0;
      this.#database.run('UPDATE task SET once = :once WHERE number = :number AND once <> :once', {
        number,
        once,
      });
    }
    const { phase, outputDirectory } = task.spec;
    const before = knownDestinations(places);
    if (before.some((known) => known.phase === phase && known.outputDirectory === outputDirectory)) return;
    this.#database.run('UPDATE task SET places = :places WHERE number = :number', {
      number,
      places: destinationsText([...before, task.spec]),
    });
    this.#done.placed++;
  }

  #changeNeeds(number: number): void {
    const { gpus = null, memory = null } = this.#needs;
    if (gpus === null && memory === null) return;
    this.#database.run(
      `UPDATE task SET gpus = coalesce(:gpus, gpus), memory = coalesce(:memory, memory) WHERE number = :number
         AND (gpus <> coalesce(:gpus, gpus) OR memory <> coalesce(:memory, memory))`,
      { number, gpus, memory },
    );
  }
}

/** A damaged record has no destinations. */
function knownDestinations(text: string): Destination[] {
  try {
    return readDestinations(text) ?? [];
  } catch {
    return [];
  }
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
  const names: string[] = [];
  const actOn = (tasks: readonly Selected[]) => {
    for (const task of tasks) if (act(database, task)) names.push(task.name);
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
