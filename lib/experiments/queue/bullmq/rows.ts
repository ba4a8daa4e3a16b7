import type { Task } from '../../task/index.ts';
import type { AttemptInfo, Completed, Completion, WorkerInfo, TaskRow } from '../queue.ts';
import { readCount, readJSON, readLog, readOutcome, readPlaceLines, readResult, readSource, readState, readTaker, readTask, readText, readTime } from '../records.ts';
import type { Answer } from './connection.ts';

type Text = string;
type Maybe = string | null;

/** As the script answers; see lua/lists.ts. */
export type RowAnswer = [
  id: Text,
  name: Text,
  parameters: Text,
  command: Text,
  places: Text,
  ...rest: Maybe[],
];

export function taskOf([id, name, parameters, command, places]: readonly Answer[]): Task {
  return readTask({ id, name, parameters, command, places }, readPlaceLines);
}

export function taskRowOf(answer: RowAnswer): TaskRow & { number: number } {
  const [state, starts, error, ended, source, sequence, number] = answer.slice(5) as Maybe[];
  const task = taskOf(answer);
  return {
    task,
    state: readState(state) ?? 'failed',
    starts: readCount(starts),
    error: error ?? task.damage ?? null,
    ended: readTime(ended),
    source: readSource(source),
    sequence: sequence == null ? null : readCount(sequence),
    number: readCount(number),
  };
}

/** Without what is only for listing. */
export function withoutNumber({ task, state, starts, error, ended, source, sequence }: TaskRow): TaskRow {
  return { task, state, starts, error, ended, source, sequence };
}

export function completedOf(answer: RowAnswer): Completed {
  const { task, sequence, source } = taskRowOf(answer);
  return { sequence: sequence ?? 0, task, source: source ?? 'worker' };
}

export function completionOf([answer, result]: Answer[]): Completion {
  return { ...completedOf(answer as RowAnswer), ...readResult(result) };
}

export function attemptInfoOf(answer: Maybe[]): AttemptInfo {
  const [taskId, taker, since, ended, outcome, error, log, from, to, token, taskName, submitted] = answer;
  const who = readJSON(taker);
  const [worker, host, pid, gpus] = Array.isArray(who) ? who : [];
  return {
    token: readText(token),
    taskId: readText(taskId),
    taskName: readText(taskName),
    taker: readTaker(worker, host, pid, gpus),
    since: readTime(since) ?? 0,
    ended: readTime(ended),
    outcome: readOutcome(outcome),
    submitted: submitted === '1',
    error: error ?? null,
    log: readLog(log, from, to),
  };
}

/** As `attemptInfoOf` and the scripts read it. */
export function takerText({ worker, host, pid, gpus }: WorkerInfo): string {
  return JSON.stringify([whole(worker), whole(host), pid, gpus]);
}

/** Lua's JSON refuses halves of characters, which become U+FFFD. */
function whole(text: string): string {
  return Buffer.from(text).toString();
}

/** A line of JSON for each place. */
export function placeText({ phase, outputDirectory }: { phase: string; outputDirectory: string }): string {
  return JSON.stringify([phase, outputDirectory]);
}
