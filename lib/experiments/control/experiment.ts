import { GPUOwnerError } from '../../errors.ts';
import { sanitize, showValue } from '../../platform/index.ts';
import { openProject, type Project } from '../project/index.ts';
import { isRedisURL, openQueue, type Queue, withoutPassword } from '../queue/index.ts';
import { noSweep, type Sweep } from '../sweep/index.ts';
import { ShutdownSignals } from './shutdown-signals.ts';

export interface ExperimentPlace {
  /** The project's directory. */
  directory: string;
  /** The queue; null: the one in the project. */
  url: string | null;
}

/** Opens the project of an experiment. @throws as `openProject` */
export function openWorkplace({ directory, url }: ExperimentPlace): Project {
  return openProject(directory, { isShared: url !== null && isRedisURL(url) });
}

/**
 * Opens the queue and the project of an experiment, and closes them when `use` has ended.
 * @param sweep what is to be run; null: what the queue has
 * @param options create: makes the queue if there is none; mayBeDone: a queue without work will do
 * @throws ERR_INVALID_ARGUMENT if there is nothing to do
 */
export async function withExperiment<T>(
  place: ExperimentPlace,
  sweep: Sweep | null,
  { create, mayBeDone }: { create: boolean; mayBeDone: boolean },
  use: (experiment: { queue: Queue; project: Project; signals: ShutdownSignals }) => Promise<T>,
): Promise<T> {
  const { directory, url } = place;
  const queue = await openQueue(url, directory, { create });
  if (queue === null) throw sweep?.commandless ?? noSweep(directory);
  const project = openWorkplace(place);
  const signals = new ShutdownSignals();
  try {
    const { active, pending, completed } = await queue.counts();
    if (sweep === null && !mayBeDone && active + pending + completed === 0) throw noSweep(directory);
    return await use({ queue, project, signals });
  } finally {
    await queue.close();
    signals.close();
  }
}

/**
 * Opens the queue of an experiment that exists, and closes it when `use` has ended.
 * @param look nothing is changed
 * @throws ERR_QUEUE if there is no experiment
 */
export async function withQueue(
  { directory, url }: ExperimentPlace,
  use: (queue: Queue) => Promise<void>,
  look = false,
): Promise<void> {
  const queue = await openQueue(url, directory, { create: false, look });
  if (queue === null) {
    const where = url === null ? directory : withoutPassword(url);
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

/** Finds the ids of named tasks. @throws ERR_INVALID_ARGUMENT for a name that no task has, or several */
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
