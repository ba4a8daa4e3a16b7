import { accessSync, constants, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { errorCode, GPUOwnerError } from '../../errors.ts';
import { errorReason, listWords, sanitize, statusOf } from '../../platform/index.ts';
import type { Sweep } from '../files/index.ts';
import { whyReplaceable } from '../project/index.ts';
import { batchesOf, type Queue } from '../queue/index.ts';
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
