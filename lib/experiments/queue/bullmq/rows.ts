import type { Task } from '../../task/index.ts';
import type { AttemptInfo, Completed, Completion, TaskRow, WorkerInfo } from '../queue.ts';
import * as records from '../records.ts';
import type { Answer } from './connection.ts';

// What scripts answer: Redis knows texts and lists of texts only.

type Maybe = string | null;

/** A task, as `row` in queries.ts answers it. */
export type RowAnswer = [
  id: string,
  name: string,
  parameters: string,
  command: string,
  places: string,
  ...rest: Maybe[],
];

export function taskOf(answer: readonly Answer[]): Task {
  return records.taskOf(storedTask(answer));
}

export function taskRowOf(answer: RowAnswer): TaskRow {
  return records.taskRowOf(storedTask(answer));
}

/** The number of a task in the order of arrival. */
export function numberOf(answer: RowAnswer): number {
  return records.readCount(answer[11]);
}

export function completedOf(answer: RowAnswer): Completed {
  return records.completedOf(storedTask(answer));
}

export function completionOf([answer, result]: Answer[]): Completion {
  return records.completionOf({ ...storedTask(answer as RowAnswer), result });
}

function storedTask(answer: readonly Answer[]): records.StoredTask {
  const [id, name, parameters, command, lines, state, starts, error, ended, source, sequence] = answer;
  const places = typeof lines === 'string' ? `[${lines.replaceAll('\n', ',')}]` : lines;
  return { id, name, parameters, command, places, state, starts, error, ended, source, sequence };
}

export function attemptInfoOf(answer: Maybe[]): AttemptInfo {
  const [id, workerText, since, ended, outcome, error, log, from, to, token, name, submitted] = answer;
  const list = records.readJSON(workerText);
  const [worker, host, pid, gpus] = Array.isArray(list) ? list : [];
  return records.attemptInfoOf({
    ...{ token, id, name, worker, host, pid, gpus, since, ended, outcome, error },
    ...{ log, log_from: from, log_to: to, submitted: submitted === '1' },
  });
}

/** A worker as text, as `attemptInfoOf` and the scripts read it. */
export function workerText({ worker, host, pid, gpus }: WorkerInfo): string {
  return JSON.stringify([wellFormed(worker), wellFormed(host), pid, gpus]);
}

/** Replaces halves of characters by U+FFFD: Lua's JSON refuses them. */
function wellFormed(text: string): string {
  return Buffer.from(text).toString();
}

/** A place as text: a line of JSON. */
export function placeText({ phase, outputDirectory }: { phase: string; outputDirectory: string }): string {
  return JSON.stringify([phase, outputDirectory]);
}
