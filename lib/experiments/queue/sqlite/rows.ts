import type { Place, Task, TaskCommand } from '../../task.ts';
import { parse, type Values } from '../../written.ts';
import type { AttemptInfo, Completed, Completion, State, TaskRow } from '../queue.ts';

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
  return {
    id: record.id,
    name: record.name,
    parameters: parse(record.parameters) as Values,
    command: JSON.parse(record.command) as TaskCommand,
    places: placesOf(record.places),
  };
}

export function taskRowOf(record: TaskRecord): TaskRow {
  const { state, starts, error, ended, source, sequence } = record;
  return { task: taskOf(record), state, starts, error, ended, source, sequence };
}

export function completedOf(record: TaskRecord): Completed {
  return {
    sequence: record.sequence as number,
    task: taskOf(record),
    source: record.source as 'worker' | 'table',
  };
}

export function completionOf(record: TaskRecord & { result: string }): Completion {
  return { ...completedOf(record), result: parse(record.result) as Values };
}

export function attemptInfoOf(record: AttemptRecord & { id: string; name: string }): AttemptInfo {
  const { worker, host, pid, gpus, log, log_from: from, log_to: to } = record;
  return {
    token: record.token,
    taskId: record.id,
    taskName: record.name,
    taker: { worker, host, pid, gpus: JSON.parse(gpus) as string[] },
    since: record.since,
    ended: record.ended,
    outcome: record.outcome,
    submitted: record.result !== null,
    error: record.error,
    log: log === null ? null : { path: log, from: from ?? 0, to },
  };
}

export function placesText(places: readonly Place[]): string {
  return JSON.stringify(places.map(({ phase, outputDirectory }) => [phase, outputDirectory]));
}

export function placesOf(text: string): Place[] {
  return (JSON.parse(text) as [string, string][]).map(([phase, outputDirectory]) => ({
    phase,
    outputDirectory,
  }));
}

/** SQLite's functions, and so people's tools, take a text to end at the first NUL. */
export function plain(text: string): string {
  return text.replaceAll('\0', '\ufffd');
}
