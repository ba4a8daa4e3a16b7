import { resolve } from 'node:path';
import { sanitize, usageError } from '../../platform/index.ts';
import { type ExperimentLocation, QUEUE_URLS, withoutPassword } from '../../sweeps/index.ts';
import type { InferValues, OptionTable } from '../command-line.ts';

/** Options of commands that use a queue. */
export const QUEUE = {
  project: {
    value: 'DIR',
    help: 'work in this project (default: the current directory)',
    candidates: 'directory',
  },
  queue: {
    value: 'URL',
    help: `use this task list: ${QUEUE_URLS.join(', ')} (default: GPU_OWNER_QUEUE, or in .gpu-owner/)`,
    isAdvanced: true,
  },
} satisfies OptionTable;

/** Absolute. @throws ERR_INVALID_ARGUMENT if it is empty, as it is by `--project "$UNSET"` */
function projectOf({ project }: InferValues<typeof QUEUE>): string {
  if (project === '') {
    throw usageError('--project is empty; the current directory is .');
  }
  return resolve(project ?? '.');
}

function urlOf({ queue }: InferValues<typeof QUEUE>): string | null {
  return (queue ?? process.env.GPU_OWNER_QUEUE) || null;
}

/** Reads where the experiment is. @throws ERR_INVALID_ARGUMENT */
export function locationOf(values: InferValues<typeof QUEUE>): ExperimentLocation {
  return { directory: projectOf(values), url: urlOf(values) };
}

/** The options that lead a command of the user to the same queue. */
export function sameQueue({ project, queue }: InferValues<typeof QUEUE>): string[] {
  return [
    ...(project === undefined ? [] : ['--project', project]),
    ...(queue === undefined ? [] : ['--queue', withoutPassword(queue)]),
  ];
}

const MAX_NAMED = 5;

/** "3 tasks (a, b and c)" */
export function tasksNamed(names: readonly string[]): string {
  const count = `${names.length} ${names.length === 1 ? 'task' : 'tasks'}`;
  if (names.length === 0) return 'no task';
  const more = names.length > MAX_NAMED ? ', …' : '';
  return `${count} (${names
    .slice(0, MAX_NAMED)
    .map((name) => sanitize(name, 100))
    .join(', ')}${more})`;
}
