import { resolve } from 'node:path';
import { GPUOwnerError } from '../../errors.ts';
import { listWords, sanitize, showValue, usageError } from '../../platform/index.ts';
import { findProject, openProject } from '../project/index.ts';
import type { Queue } from './queue.ts';
import { openSQLiteQueue } from './sqlite/index.ts';

export { ChangeNotifier } from './change-notifier.ts';
export {
  type Attempt,
  type AttemptInfo,
  batchesOf,
  type Completion,
  type Counts,
  completionsAfter,
  type Deadline,
  type Enqueued,
  MAX_DELAY_MS,
  type Management,
  NO_PID,
  type Pause,
  type Queue,
  QueueRemovedError,
  type SearchRecord,
  STATES,
  type State,
  type TaskFailure,
  type TaskRow,
  type WorkerInfo,
  type WorkerQueue,
} from './queue.ts';
export {
  commandText,
  NO_COMMAND_TEXT,
} from './records.ts';
export { cancelTasks, RETRIED_STATES, resolveTask, retryTasks } from './task-changes.ts';

interface Opening {
  create: boolean;
  takesPart: boolean;
}

/** The URLs of queues, for help. */
export const QUEUE_URLS: readonly string[] = ['sqlite:PATH', 'redis://HOST', 'rediss://HOST'];

/** Whether a URL names a queue on a server, which several machines share: then the project's directory may be on a network file system. */
export function isOnServer(url: string): boolean {
  return /^(?:rediss?|redis\+unix):/i.test(url);
}

/**
 * Removes user and password from a URL, for people, also if they have a '/' or '?' that isn't encoded. Behind the host, only the parameter
 * `ca` may have an '@'.
 */
export function withoutPassword(url: string): string {
  return url.replace(/^([a-z+]+:\/\/)(?:(?![?&]ca=).)*@/is, '$1');
}

/**
 * Opens the queue of a project.
 * @param url `sqlite:PATH`, from the project directory on if it is relative; `redis://HOST`, `rediss://HOST` and
 *   `redis+unix:///PATH` (see bullmq/address.ts); null: the project's own
 * @param project its directory
 * @param options create: false makes nothing, and answers null where there is no queue yet. takesPart: the caller adds or runs tasks, so a queue of another project is refused
 * @throws ERR_QUEUE if it can't be used, ERR_INVALID_ARGUMENT for other URLs
 */
export function openQueue(url: string | null, project: string, options?: { create?: true }): Promise<Queue>;
export function openQueue(
  url: string | null,
  project: string,
  options: Partial<Opening>,
): Promise<Queue | null>;
export async function openQueue(
  url: string | null,
  project: string,
  { create = true, takesPart = false }: Partial<Opening> = {},
): Promise<Queue | null> {
  if (url !== null && isOnServer(url)) {
    // Only queues on Redis load its code.
    const { openBullMQQueue } = await import('./bullmq/index.ts');
    return openBullMQQueue(url, project, { create, takesPart });
  }
  if (url !== null) return openSQLiteQueue(pathOf(url, project), create);
  const found = create ? openProject(project) : findProject(project);
  return found === null ? null : openSQLiteQueue(resolve(found.state, 'queue.db'), create);
}

function pathOf(url: string, project: string): string {
  const path = /^sqlite:(.+)$/s.exec(url)?.[1];
  if (path === undefined || path.includes('\0')) throw noQueue(url);
  return resolve(project, path.replace(/^\/\/(?=\/)/, '')); // sqlite:///a/b, as others write it
}

function noQueue(url: string): GPUOwnerError {
  return usageError(
    `${showValue(withoutPassword(url))} is not the URL of a queue; use ${listWords(QUEUE_URLS, 'or')}.`,
  );
}

export interface ExperimentLocation {
  /** The project's directory. */
  directory: string;
  /** The queue; null: the one in the project. */
  url: string | null;
}

/**
 * Opens the queue of an experiment that exists, and closes it when `use` has ended.
 * @throws ERR_QUEUE if there is no experiment
 */
export async function withQueue(
  { directory, url }: ExperimentLocation,
  use: (queue: Queue) => Promise<void>,
): Promise<void> {
  const queue = await openQueue(url, directory, { create: false });
  if (queue === null) throw noExperiment({ directory, url });
  try {
    await use(queue);
  } finally {
    await queue.close();
  }
}

export function whereText({ directory, url }: ExperimentLocation): string {
  return sanitize(url === null ? directory : withoutPassword(url), 300);
}

export function noExperiment(location: ExperimentLocation): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_QUEUE',
    `there is no experiment in ${whereText(location)}: start one with gpu-owner exp run, or name its directory with --project.`,
  );
}
