import type { Place, Task } from '../../task/index.ts';
import type { AttemptInfo, Completed, Completion, State, TaskRow } from '../queue.ts';
import {
  readCount,
  readJSON,
  readLog,
  readOutcome,
  readPlaces,
  readResult,
  readSource,
  readState,
  readTaker,
  readTask,
  readText,
  readTime,
} from '../records.ts';

/** A row of table `task`. */
export interface TaskRecord {
  number: number;
  id: string;
  name: string;
  parameters: string;
  command: string;
  places: string;
  state: State;
  starts: number;
  due: number | null;
  error: string | null;
  ended: number | null;
  sequence: number | null;
  source: 'worker' | 'table' | null;
}

/** Its columns. The result, which may be large, is read by those only who need it. */
export const TASK =
  'number, id, name, parameters, command, places, state, starts, due, error, ended, sequence, source';

/** A row of table `attempt`. */
export interface AttemptRecord {
  number: number;
  token: string;
  task: number;
  start: number;
  worker: string;
  host: string;
  pid: number;
  gpus: string;
  boot: string;
  inode: string;
  since: number;
  deadline: number | null;
  ended: number | null;
  outcome: AttemptInfo['outcome'];
  error: string | null;
  gone: 0 | 1;
  log: string | null;
  log_from: number | null;
  log_to: number | null;
  result: string | null;
}

export function taskOf(record: TaskRecord): Task {
  return readTask(record, readPlaces);
}

export function taskRowOf(record: TaskRecord): TaskRow {
  const task = taskOf(record);
  return {
    task,
    state: readState(record.state) ?? 'failed',
    starts: readCount(record.starts),
    error: typeof record.error === 'string' ? record.error : (task.damage ?? null),
    ended: readTime(record.ended),
    source: readSource(record.source),
    sequence: record.sequence,
  };
}

export function completedOf(record: TaskRecord): Completed {
  return {
    sequence: record.sequence as number,
    task: taskOf(record),
    source: readSource(record.source) ?? 'worker',
  };
}

export function completionOf(record: TaskRecord & { result: string }): Completion {
  return { ...completedOf(record), ...readResult(record.result) };
}

export function attemptInfoOf(record: AttemptRecord & { id: string; name: string }): AttemptInfo {
  return {
    token: readText(record.token),
    taskId: readText(record.id),
    taskName: readText(record.name),
    taker: readTaker(record.worker, record.host, record.pid, readJSON(record.gpus)),
    since: readTime(record.since) ?? 0,
    ended: readTime(record.ended),
    outcome: readOutcome(record.outcome),
    submitted: record.result !== null,
    error: typeof record.error === 'string' ? record.error : null,
    log: readLog(record.log, record.log_from, record.log_to),
  };
}

export function placesText(places: readonly Place[]): string {
  return JSON.stringify(places.map(({ phase, outputDirectory }) => [phase, outputDirectory]));
}

/** SQLite's functions, and so people's tools, take a text to end at the first NUL. */
export function plain(text: string): string {
  return text.replaceAll('\0', '\ufffd');
}
