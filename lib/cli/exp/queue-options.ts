import { resolve } from 'node:path';
import { GPUOwnerError } from '../../errors.ts';
import {
  isRedisURL,
  openProject,
  openQueue,
  type Project,
  type Queue,
  withoutPassword,
} from '../../experiments/index.ts';
import { sanitize, showValue } from '../../platform/index.ts';
import type { OptionTable, Values } from '../arguments.ts';

/** Options of commands that use a queue. */
export const QUEUE = {
  project: { type: 'string' },
  queue: { type: 'string' },
} as const satisfies OptionTable;

export const QUEUE_HELP = `  --project DIR             the project (default: the current directory)
  --queue URL               its queue: sqlite:PATH, redis://HOST, rediss://HOST
                            (default: GPU_OWNER_QUEUE, or in .gpu-owner/)`;

/** Absolute. @throws ERR_INVALID_ARGUMENT if it is empty, as it is by `--project "$UNSET"` */
export function projectOf({ project }: Values): string {
  if (project === '') {
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', '--project is empty; the current directory is .');
  }
  return resolve((project as string | undefined) ?? '.');
}

export function urlOf({ queue }: Values): string | null {
  return ((queue as string | undefined) ?? process.env.GPU_OWNER_QUEUE) || null;
}

/** The project, for those who work in it. @throws as {@link openProject} */
export function openWorkplace(values: Values): Project {
  const url = urlOf(values);
  return openProject(projectOf(values), { isShared: url !== null && isRedisURL(url) });
}

/** What to add to a command that somebody shall type, so that it means the same queue. */
export function sameQueue({ project, queue }: Values): string[] {
  return [
    ...(project === undefined ? [] : ['--project', String(project)]),
    ...(queue === undefined ? [] : ['--queue', withoutPassword(String(queue))]),
  ];
}

/** For those who look at an experiment, or change it: there must be one. @param look nothing is changed @throws ERR_QUEUE */
export async function withQueue(
  values: Values,
  use: (queue: Queue) => Promise<void>,
  look = false,
): Promise<void> {
  const queue = await openQueue(urlOf(values), projectOf(values), { create: false, look });
  if (queue === null) {
    const url = urlOf(values);
    const where = url === null ? projectOf(values) : withoutPassword(url);
    throw new GPUOwnerError(
      'ERR_QUEUE',
      `there is no experiment in ${sanitize(where, 300)}: gpu-owner exp run begins one, --project names another directory.`,
    );
  }
  try {
    await use(queue);
  } finally {
    await queue.close();
  }
}

/** The ids of tasks that are named. @throws ERR_INVALID_ARGUMENT for a name that no task has, or several */
export async function resolveTasks(queue: Queue, names: readonly string[]): Promise<string[]> {
  const ids: string[] = [];
  for (const match of names) {
    const found: string[] = [];
    for await (const { task } of queue.tasks({ match, limit: 2 })) found.push(task.id);
    const [id] = found;
    if (id === undefined) {
      throw new GPUOwnerError(
        'ERR_INVALID_ARGUMENT',
        `no task has the name or id ${showValue(match)}; gpu-owner exp export has the names of completed ones, exp status of those that run or have failed`,
      );
    }
    if (found.length > 1) {
      throw new GPUOwnerError(
        'ERR_INVALID_ARGUMENT',
        `${showValue(match)} begins more than one id; write more of it`,
      );
    }
    ids.push(id);
  }
  return ids;
}

const MOST_NAMED = 5;

/** "3 tasks (a, b and c)" */
export function tasksNamed(names: readonly string[]): string {
  const count = `${names.length} ${names.length === 1 ? 'task' : 'tasks'}`;
  if (names.length === 0) return 'no task';
  const more = names.length > MOST_NAMED ? ', …' : '';
  return `${count} (${names
    .slice(0, MOST_NAMED)
    .map((name) => sanitize(name, 100))
    .join(', ')}${more})`;
}
