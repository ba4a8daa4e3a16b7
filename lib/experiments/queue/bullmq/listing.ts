import type { Task } from '../../task/index.ts';
import {
  type AttemptInfo,
  type Completed,
  type Completion,
  type Counts,
  MAX_BYTES,
  STATES,
  type State,
  type TaskRow,
  type WithoutResult,
} from '../queue.ts';
import { readTime } from '../records.ts';
import type { Answer, Connection } from './connection.ts';
import {
  attemptInfoOf,
  completedOf,
  completionOf,
  type RowAnswer,
  taskOf,
  taskRowOf,
  withoutNumber,
} from './rows.ts';

/** Tasks per operation. */
const PAGE = 500;

export interface Which {
  state?: State;
  match?: string;
  limit?: number;
}

/** See `Queue.tasks`. */
export async function* listTasks(
  connection: Connection,
  { state, match, limit = Number.POSITIVE_INFINITY }: Which,
): AsyncGenerator<TaskRow> {
  if (match !== undefined) {
    yield* matching(connection, match, state, limit);
    return;
  }
  for (let after = 0, left = limit; left > 0; ) {
    const page = Math.min(PAGE, left);
    const answers = await connection.call<(RowAnswer | null)[]>('page', state ?? '', after, page, MAX_BYTES);
    if (!answers.some((answer) => answer !== null)) return;
    for (const answer of answers) {
      if (answer === null) continue;
      const row = taskRowOf(answer);
      after = Math.max(after, row.number);
      yield withoutNumber(row);
    }
    left -= answers.length;
  }
}

async function* matching(
  connection: Connection,
  match: string,
  state: State | undefined,
  limit: number,
): AsyncGenerator<TaskRow> {
  if (match === '') return;
  const ids = [...new Set(await connection.call<string[]>('match', match))];
  const rows = await rowsOf(connection, ids);
  const found = rows.filter(
    (row) => row !== null && (state === undefined || row.state === state),
  ) as Numbered[];
  found.sort((a, b) => a.number - b.number);
  for (const row of found.slice(0, limit)) yield withoutNumber(row);
}

type Numbered = TaskRow & { number: number };

async function rowsOf(connection: Connection, ids: readonly string[]): Promise<(Numbered | null)[]> {
  const rows: (Numbered | null)[] = [];
  while (rows.length < ids.length) {
    const some = ids.slice(rows.length, rows.length + PAGE);
    const answers = await connection.call<(RowAnswer | null)[]>('rows', MAX_BYTES, ...some);
    for (const answer of answers) rows.push(answer === null ? null : taskRowOf(answer));
  }
  return rows;
}

/** See `Queue.lookUp`. */
export async function lookUp(connection: Connection, ids: readonly string[]): Promise<(TaskRow | null)[]> {
  return (await rowsOf(connection, ids)).map((row) => (row === null ? null : withoutNumber(row)));
}

export async function countTasks(connection: Connection): Promise<Counts> {
  const counts = await connection.call<number[]>('counts', ...STATES);
  return Object.fromEntries(STATES.map((state, index) => [state, counts[index] ?? 0])) as Counts;
}

/** See `Queue.nextTime`. */
export async function nextTime(connection: Connection): Promise<number | null> {
  const time = await connection.call<string | null>('nextTime');
  return time === null ? null : readTime(time);
}

/** See `Queue.attempts`. */
export async function listAttempts(
  connection: Connection,
  which: 'living' | { taskId: string },
): Promise<AttemptInfo[]> {
  const words = which === 'living' ? [1, ''] : [0, which.taskId];
  const answers = await connection.call<(string | null)[][]>('attempts', ...words);
  return answers.map(attemptInfoOf);
}

/** See `Queue.withoutResult`. */
export async function listWithoutResult(connection: Connection): Promise<WithoutResult[]> {
  const answer = await connection.call<string[]>('withoutResult');
  const found: WithoutResult[] = [];
  for (let at = 0; at < answer.length; at += 2) {
    const [host = '', ...worker] = (answer[at] as string).split('\n');
    found.push({ worker: worker.join('\n'), host, tasks: Number(answer[at + 1]) });
  }
  return found
    .filter(({ tasks }) => tasks > 0)
    .sort((one, other) => other.tasks - one.tasks || (one.worker < other.worker ? -1 : 1));
}

/** See `Queue.completions`. */
export async function listCompletions(
  connection: Connection,
  after: number,
  limit: number,
): Promise<Completion[]> {
  const answers = await connection.call<Answer[][]>('completions', after, limit, MAX_BYTES, 1);
  return answers.map(completionOf);
}

/** See `Queue.completed`. */
export async function listCompleted(
  connection: Connection,
  after: number,
  limit: number,
): Promise<Completed[]> {
  const answers = await connection.call<RowAnswer[]>('completions', after, limit, MAX_BYTES, 0);
  return answers.map(completedOf);
}

/** See `Queue.retracted`. */
export async function listRetracted(connection: Connection): Promise<Task[]> {
  const tasks: Task[] = [];
  for (let after = 0; ; ) {
    const answers = await connection.call<RowAnswer[]>('retracted', after, PAGE, MAX_BYTES);
    const last = answers.at(-1);
    if (last === undefined) return tasks;
    tasks.push(...answers.map(taskOf));
    after = taskRowOf(last).number;
  }
}

/** See `Queue.forgetRetracted`. */
export async function forgetRetracted(connection: Connection, ids: readonly string[]): Promise<void> {
  for (let from = 0; from < ids.length; from += PAGE) {
    await connection.call('forget', ...ids.slice(from, from + PAGE));
  }
}
