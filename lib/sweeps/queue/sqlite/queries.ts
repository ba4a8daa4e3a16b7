import { setImmediate as breathe } from 'node:timers/promises';
import type { GPUOwnerError } from '../../../errors.ts';
import {
  type AttemptInfo,
  type Completion,
  type Counts,
  MAX_BYTES,
  MAX_DELAY_MS,
  type Queries,
  STATES,
  type State,
  type TaskRow,
  unusable,
} from '../queue.ts';
import {
  attemptInfoOf,
  completedOf,
  completionOf,
  readCount,
  readJSON,
  taskOf,
  taskRowOf,
} from '../records.ts';
import { nextTask, whyEnded } from './attempts.ts';
import type { Database } from './database.ts';
import { DAMAGED } from './files.ts';
import type { LockFile } from './locks.ts';
import { type AttemptRecord, TASK, type TaskRecord } from './schema.ts';

/** Tasks per query: short ones, between which others of the process get their turn. */
const PAGE = 500;
const COMPLETED = 'FROM task WHERE sequence > :after ORDER BY sequence LIMIT :limit';

export function queryMethods(database: Database, locks: LockFile): Queries {
  return {
    async lookUp(ids) {
      const rows: (TaskRow | null)[] = [];
      for (let from = 0; from < ids.length; from += PAGE) {
        await database.read(() => {
          for (const id of ids.slice(from, from + PAGE)) {
            const record = id.includes('\0')
              ? undefined
              : database.get<TaskRecord>(`SELECT ${TASK} FROM task WHERE id = :id`, { id });
            rows.push(record === undefined ? null : taskRowOf(record, taskOf(record)));
          }
        });
        await breathe();
      }
      return rows;
    },

    async counts() {
      const rows = await database.read(() =>
        database.all<{ state: State; tasks: number }>(
          // Each has an index.
          `SELECT state, count(*) AS tasks FROM task WHERE state <> 'pending' GROUP BY state
           UNION ALL SELECT 'pending', count(*) FROM task WHERE state = 'pending'`,
        ),
      );
      const tasks = new Map<string, number>(rows.map((row) => [row.state, row.tasks]));
      return Object.fromEntries(
        STATES.map((state) => [state, readCount(tasks.get(state))]),
      ) as unknown as Counts;
    },

    nextTime() {
      return database.read(() => {
        if (nextTask(database) !== undefined) return null;
        const sql = `SELECT min(due) AS due FROM task
          WHERE due > :now AND due <= :latest AND state = 'pending'`;
        const now = Date.now();
        const values = { now, latest: now + MAX_DELAY_MS };
        return database.get<{ due: number | null }>(sql, values)?.due ?? null;
      });
    },

    tasks(which = {}) {
      return listTasks(database, which);
    },

    attempts: (which) => listAttempts(database, locks, which),
    completions: (after, limit) => listCompletions(database, after, limit),

    async completed(after, limit) {
      const records = await database.read(() =>
        database.all<TaskRecord>(`SELECT ${TASK} ${COMPLETED}`, { after, limit }),
      );
      return inOrder(database, records, after).map((record) => completedOf(record, taskOf(record)));
    },

    async retracted() {
      const records = await database.read(() =>
        database.all<TaskRecord>(
          `SELECT ${TASK} FROM task WHERE number IN (SELECT task FROM retracted) ORDER BY number`,
        ),
      );
      return records.map(taskOf);
    },
  };
}

async function* listTasks(
  database: Database,
  { state, match, limit = Number.POSITIVE_INFINITY }: { state?: State; match?: string; limit?: number },
): AsyncGenerator<TaskRow> {
  if (match === '' || match?.includes('\0')) return;
  const conditions = state === undefined ? '' : inState(state);
  const matching = match === undefined ? '' : 'AND (name = :match OR (id >= :match AND id < :end))';
  for (let after = 0, left = limit; left > 0; ) {
    const page = Math.min(PAGE, left);
    const records = await database.read(() =>
      database.all<TaskRecord>(
        `SELECT ${TASK} FROM task WHERE number > :after ${conditions} ${matching} ORDER BY number LIMIT :page`,
        // Ids are ASCII.
        { after, page, ...(match === undefined ? {} : { match, end: `${match}\uffff` }) },
      ),
    );
    for (const record of records) yield taskRowOf(record, taskOf(record));
    if (records.length < page) return;
    const last = records.at(-1)?.number ?? after;
    if (last <= after) throw disordered(database);
    after = last;
    left -= records.length;
    await breathe();
  }
}

/** Attempts whose processes are gone don't live, although that isn't recorded yet. */
async function listAttempts(
  database: Database,
  locks: LockFile,
  which: 'living' | { taskId: string },
): Promise<AttemptInfo[]> {
  const areLiving = which === 'living';
  const condition = areLiving ? 'outcome IS NULL AND gone = 0' : 'task.id = :id';
  const records = await database.read(() =>
    database.all<AttemptRecord & { id: string; name: string }>(
      `SELECT attempt.*, task.id, task.name FROM attempt JOIN task ON task.number = attempt.task
       WHERE ${condition} ORDER BY attempt.number`,
      areLiving ? {} : { id: which.taskId },
    ),
  );
  return records.filter((record) => !areLiving || whyEnded(record, locks) === null).map(infoOf);
}

async function listCompletions(database: Database, after: number, limit: number): Promise<Completion[]> {
  const records = await database.read(() => {
    // Their sizes are known without reading them.
    const sizes = database.all<{ bytes: number }>(
      `SELECT octet_length(result) + octet_length(parameters) AS bytes ${COMPLETED}`,
      { after, limit },
    );
    let count = 0;
    for (let bytes = 0; count < sizes.length; count++) {
      bytes += sizes[count]?.bytes ?? 0;
      if (bytes > MAX_BYTES && count > 0) break;
    }
    const select = `SELECT ${TASK}, result ${COMPLETED}`;
    return database.all<TaskRecord & { result: string }>(select, { after, limit: count });
  });
  return inOrder(database, records, after).map((record) => completionOf(record, taskOf(record)));
}

/** A condition on tasks. The second comparison lets SQLite use the index of tasks that aren't pending. */
export function inState(state: State): string {
  if (!/^[a-z]+$/.test(state)) throw new TypeError(`no state: ${state}`);
  return state === 'pending' ? `AND state = 'pending'` : `AND state = '${state}' AND state <> 'pending'`;
}

/** A row of table `attempt` with id and name of its task, as `Queue.attempts` has it. */
export function infoOf(record: AttemptRecord & { id: string; name: string }): AttemptInfo {
  return attemptInfoOf({ ...record, gpus: readJSON(record.gpus), submitted: record.result !== null });
}

/** Checks that completions are in order: otherwise, reading them page by page would never end. @throws ERR_QUEUE */
function inOrder<T extends TaskRecord>(
  database: Database,
  records: readonly T[],
  after: number,
): readonly T[] {
  let last = after;
  for (const { sequence } of records) {
    if (!Number.isSafeInteger(sequence) || (sequence as number) <= last) throw disordered(database);
    last = sequence as number;
  }
  return records;
}

function disordered({ path }: Database): GPUOwnerError {
  return unusable(path, 'is damaged: its completions are out of order', DAMAGED);
}
