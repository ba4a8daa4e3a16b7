import { accessSync, closeSync, constants, openSync, readFileSync, statSync, writeSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { errorCode, GPUOwnerError, ifPossible, isFailure } from '../../errors.ts';
import { errorReason, listWords, sanitize, statusOf } from '../../platform/index.ts';
import type { Sweep } from '../files/index.ts';
import { isInside, whyReplaceable } from '../project/index.ts';
import { batchesOf, type Queue, readJSON } from '../queue/index.ts';
import { outputDirectoriesOf, type TaskSpec, taskId } from '../task/index.ts';
import { findCompletedTasks } from './find-results.ts';

/** Directories that an error names. */
const NAMED = 3;

/**
 * Refuses a sweep whose tables and logs couldn't be written here, before anything of it is added. Makes no directories: what shows only
 * then, or only on other machines, is reported when it happens. Directories in which nothing is left to be written may be as they are.
 * @throws ERR_CONFIGURATION
 */
export async function refuseUnusable(
  sweep: Sweep,
  queue: Pick<Queue, 'lookUp' | 'tasks' | 'completions'>,
  project: string,
): Promise<void> {
  const { uid } = statSync(project);
  /** By their output directories. */
  const unusable = new Map<string, { why: string; tasks: number }>();
  for (const outputDirectory of new Set(outputDirectoriesOf(sweep.tasks()))) {
    const path = resolve(project, outputDirectory);
    const why = whyReplaceable(path, uid) ?? whyNotWritable(path);
    if (why !== null) unusable.set(outputDirectory, { why, tasks: 0 });
  }
  if (unusable.size === 0) return;
  const recorded = await findCompletedTasks(sweep, project, queue);
  for (const batch of batchesOf(tasksIn(sweep, unusable))) {
    const ids = batch.map(({ parameters }) => taskId(parameters));
    const rows = await queue.lookUp(ids);
    for (const [at, { outputDirectory }] of batch.entries()) {
      const row = rows[at] ?? null;
      const isPlaced = row?.task.destinations.some((known) => known.outputDirectory === outputDirectory);
      const isLeft =
        row === null
          ? !recorded.has(ids[at] as string)
          : !isPlaced || ['pending', 'active'].includes(row.state);
      if (isLeft) (unusable.get(outputDirectory) as { tasks: number }).tasks++;
    }
  }
  const bad = [...unusable].filter(([, { tasks }]) => tasks > 0);
  if (bad.length > 0) throw refusal(bad);
}

function* tasksIn(sweep: Sweep, outputDirectories: { has(path: string): boolean }): Generator<TaskSpec> {
  for (const spec of sweep.tasks()) if (outputDirectories.has(spec.outputDirectory)) yield spec;
}

function refusal(bad: readonly [string, { why: string; tasks: number }][]): GPUOwnerError {
  const more = bad.length - NAMED;
  const list = bad
    .slice(0, NAMED)
    .map(
      ([directory, { why, tasks }]) =>
        `'${sanitize(directory, 200)}' of ${tasks} ${tasks === 1 ? 'task' : 'tasks'} (${sanitize(why, 300)})`,
    );
  return new GPUOwnerError(
    'ERR_CONFIGURATION',
    `results can't be written to the output_dir ${listWords([...list, ...(more > 0 ? [`${more} more`] : [])])}. ` +
      'Nothing was added. Name another output_dir, or make that one writable, and start again.',
  );
}

/** Why nothing can be written in a directory, or it can't be made; null: as far as can be seen, it can. */
function whyNotWritable(path: string): string | null {
  try {
    if (!statSync(path).isDirectory()) return `${path} is not a directory`;
    accessSync(path, constants.W_OK | constants.X_OK);
    return null;
  } catch (error) {
    const code = errorCode(error);
    if (code !== 'ENOENT' && code !== 'ENOTDIR') return `${path}: ${errorReason(error)}`;
    return statusOf(path)?.kind === 'link'
      ? `${path} is a symbolic link that leads nowhere`
      : whyNotWritable(dirname(path));
  }
}

/** In the project's state directory: a line of JSON for each directory outside of the project that its sweeps have named. */
const NAMED_DIRECTORIES = 'output-directories';

/**
 * Where rows may be written. Any user who may write to a queue on a server can name any directory there, so that those outside
 * of the project count only if a sweep that was given here has named them.
 */
export class OutputDirectories {
  readonly #project: string;
  readonly #file: string;
  readonly #named = new Set<string>();

  /** @param state the project's directory for what is kept */
  constructor(project: string, state: string) {
    this.#project = resolve(project);
    this.#file = join(state, NAMED_DIRECTORIES);
    const text = ifPossible(() => readFileSync(this.#file, 'utf8'), ''); // there may be none yet
    for (const line of text.split('\n')) {
      const directory = readJSON(line);
      if (typeof directory === 'string') this.#named.add(directory);
    }
  }

  /** Adds the directories of a sweep that was given here. They are remembered, as far as that can be written. */
  name(sweep: Sweep): void {
    const fresh = new Set<string>();
    for (const outputDirectory of outputDirectoriesOf(sweep.tasks())) {
      if (!this.includes(outputDirectory)) fresh.add(resolve(this.#project, outputDirectory));
    }
    if (fresh.size === 0) return;
    for (const directory of fresh) this.#named.add(directory);
    const { O_APPEND, O_CREAT, O_NOFOLLOW, O_WRONLY } = constants;
    try {
      const file = openSync(this.#file, O_APPEND | O_CREAT | O_NOFOLLOW | O_WRONLY, 0o600);
      try {
        writeSync(file, [...fresh].map((directory) => `${JSON.stringify(directory)}\n`).join(''));
      } finally {
        closeSync(file);
      }
    } catch (error) {
      // They are known until this process ends; a start with the sweep names them again.
      if (!isFailure(error)) throw error;
    }
  }

  includes(outputDirectory: string): boolean {
    const path = resolve(this.#project, outputDirectory);
    return isInside(path, this.#project) || this.#named.has(path);
  }
}
