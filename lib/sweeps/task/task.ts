// A task of a sweep: equal parameters are an equal task.

import { createHash } from 'node:crypto';
import { canonical, type Value, type Values } from './values.ts';

/** The command of a task: words, or a line for `sh -c`. All placeholders are filled in. */
export type TaskCommand = { readonly words: readonly string[] } | { readonly shell: string };

/** The Python that a command runs in, and so the user's; otherwise `python3`. */
export function pythonOf(command: TaskCommand): string {
  const line = 'shell' in command ? command.shell : (command.words[0] ?? '');
  return /(?:^|\s)((?:[^\s'"]*\/)?python[\d.]*)(?:\s|$)/.exec(line)?.[1] ?? 'python3';
}

/** The phase of a task, and the directory that gets its row. Equal tasks of several phases are one task with several destinations. */
export interface Destination {
  phase: string;
  /** The directory whose final_results.csv gets the row: relative to the project, or absolute. */
  outputDirectory: string;
}

/** The output directories of tasks, in their order. Neighbours that share one count once. */
export function* outputDirectoriesOf(
  tasks: Iterable<Pick<Destination, 'outputDirectory'>>,
): Generator<string> {
  let last: string | null = null;
  for (const { outputDirectory } of tasks) {
    if (outputDirectory !== last) yield outputDirectory;
    last = outputDirectory;
  }
}

/** A task as a sweep describes it. */
export interface TaskSpec extends Destination {
  /** With the defaults, without the output directory: what the task is. */
  parameters: Values;
  command: TaskCommand;
  /** How often it is started again by itself, after a failure or a lost worker. Absent: a known task keeps what it has. */
  retries?: number;
}

/** A task as the queue has it. */
export interface Task {
  /** `t-` and the SHA-256 of the canonical parameters, in hexadecimal. */
  id: string;
  /** For people, and for files: `PHASE_COUNTER_SEED`, or `PHASE_COUNTER` without a parameter `seed`. Given once, never changed. */
  name: string;
  parameters: Values;
  command: TaskCommand;
  /** In the order in which they came; at least one. The first is where its log goes. */
  destinations: readonly Destination[];
}

/** Equal parameters are an equal task: 1 = 1.0, and the order of keys doesn't matter. */
export function taskId(parameters: Values): string {
  return `t-${createHash('sha256').update(canonical(parameters)).digest('hex')}`;
}

/** The seed of tasks whose sweep file says none. */
export const DEFAULT_SEED = 42;

export function seedOf(parameters: Values): Value {
  return Object.hasOwn(parameters, 'seed') ? (parameters.seed as Value) : null;
}
