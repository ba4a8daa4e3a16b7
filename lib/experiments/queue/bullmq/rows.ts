import type { Task, TaskCommand } from '../../task.ts';
import { parse, type Values } from '../../written.ts';
import type { AttemptInfo, Completed, Completion, State, Taker, TaskRow } from '../queue.ts';
import { type Answer, valuesOf } from './connection.ts';

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
  return {
    id: id as string,
    name: name as string,
    parameters: parse(parameters as string) as Values,
    command: JSON.parse(command as string) as TaskCommand,
    places: placesOf(places as string),
  };
}

export function taskRowOf(answer: RowAnswer): TaskRow & { number: number } {
  const [state, starts, error, ended, source, sequence, number] = answer.slice(5) as Maybe[];
  return {
    task: taskOf(answer),
    state: state as State,
    starts: Number(starts),
    error: error as Maybe,
    ended: numberOf(ended),
    source: (source ?? null) as TaskRow['source'],
    sequence: numberOf(sequence),
    number: Number(number),
  };
}

/** Without what is only for listing. */
export function withoutNumber({ task, state, starts, error, ended, source, sequence }: TaskRow): TaskRow {
  return { task, state, starts, error, ended, source, sequence };
}

export function completedOf(answer: RowAnswer): Completed {
  const { task, sequence, source } = taskRowOf(answer);
  return { sequence: sequence as number, task, source: source as Completed['source'] };
}

export function completionOf([answer, result]: Answer[]): Completion {
  return { ...completedOf(answer as RowAnswer), result: valuesOf(result as string) };
}

export function attemptInfoOf(answer: Maybe[]): AttemptInfo {
  const [taskId, taker, since, ended, outcome, error, log, from, to, token, taskName, submitted] = answer;
  const [worker, host, pid, gpus] = JSON.parse(taker as string) as [string, string, number, string[]];
  return {
    token: token as string,
    taskId: taskId as string,
    taskName: taskName as string,
    taker: { worker, host, pid, gpus },
    since: Number(since),
    ended: numberOf(ended),
    outcome: (outcome ?? null) as AttemptInfo['outcome'],
    submitted: submitted === '1',
    error: error ?? null,
    log: log == null ? null : { path: log, from: Number(from), to: numberOf(to === '' ? null : to) },
  };
}

function numberOf(text: Maybe | undefined): number | null {
  return text == null ? null : Number(text);
}

/** As `attemptInfoOf` and the scripts read it. */
export function takerText({ worker, host, pid, gpus }: Taker): string {
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

function placesOf(text: string): Task['places'] {
  return text.split('\n').map((line) => {
    const [phase, outputDirectory] = JSON.parse(line) as [string, string];
    return { phase, outputDirectory };
  });
}
