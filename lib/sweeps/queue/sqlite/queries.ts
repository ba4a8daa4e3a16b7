import { setImmediate as breathe } from 'node:timers/promises';
import {
  type AttemptInfo,
  type Completion,
  MAX_BYTES,
  MAX_DELAY_MS,
  type Queries,
  STATES,
  type State,
  type TaskRow,
} from '../queue.ts';
import { readGPUs, readResult, taskOf } from '../records.ts';
import { nextTask, whyEnded } from './attempts.ts';
import type { Database } from './database.ts';
import type { LockFile } from './locks.ts';
import { type AttemptRecord, TASK, type TaskRecord } from './schema.ts';

type CompletedRecord = TaskRecord & { sequence: number; source: 'worker' | 'table'; result: string };

/** Tasks per query: short ones, between which others of the process get their turn. */
const PAGE = 500;

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
            rows.push(record === undefined ? null : rowOf(record));
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
      return Object.fromEntries(STATES.map((state) => [state, tasks.get(state) ?? 0])) as Record<
        State,
        number
      >;
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
  { state, match }: { state?: State; match?: string },
): AsyncGenerator<TaskRow> {
  if (match === '' || match?.includes('\0')) return;
  const conditions = state === undefined ? '' : inState(state);
  const matching = match === undefined ? '' : 'AND (name = :match OR (id >= :match AND id < :end))';
  for (let after = 0; ; ) {
    const records = await database.read(() =>
      database.all<TaskRecord>(
        `SELECT ${TASK} FROM task WHERE number > :after ${conditions} ${matching} ORDER BY number LIMIT ${PAGE}`,
        // Ids are ASCII.
        { after, ...(match === undefined ? {} : { match, end: `${match}\uffff` }) },
      ),
    );
    for (const record of records) yield rowOf(record);
    const last = records.at(-1);
    if (last === undefined || records.length < PAGE) return;
    after = last.number;
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
  const select = `SELECT ${TASK}, result FROM task WHERE sequence > :after ORDER BY sequence LIMIT :limit`;
  return database.read(() => {
    const found: Completion[] = [];
    let bytes = 0;
    for (const record of database.each<CompletedRecord>(select, { after, limit })) {
      bytes += record.result.length + record.parameters.length;
      if (bytes > MAX_BYTES && found.length > 0) break;
      const task = taskOf(record);
      const { sequence, source, result } = record;
      found.push({ sequence, task, source, result: readResult(task, result) });
    }
    return found;
  });
}

/** A condition on tasks. The second comparison lets SQLite use the index of tasks that aren't pending. */
export function inState(state: State): string {
  if (!/^[a-z]+$/.test(state)) throw new TypeError(`no state: ${state}`);
  return state === 'pending' ? `AND state = 'pending'` : `AND state = '${state}' AND state <> 'pending'`;
}

function rowOf(record: TaskRecord): TaskRow {
  const { state, starts, error, ended, source, sequence } = record;
  return { task: taskOf(record), state, starts, error, ended, source, sequence };
}

/** A row of table `attempt` with id and name of its task, as `Queue.attempts` has it. */
function infoOf(record: AttemptRecord & { id: string; name: string }): AttemptInfo {
  const { token, id, name, worker, host, pid, gpus, since, ended, outcome, error, log, log_from, log_to } =
    record;
  return {
    token,
    taskId: id,
    taskName: name,
    worker: { name: worker, host, pid, gpus: readGPUs(gpus) },
    since,
    ended,
    outcome,
    error,
    log: log === null ? null : { path: log, from: log_from ?? 0, to: log_to },
  };
}
