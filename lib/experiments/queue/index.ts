import { resolve } from 'node:path';
import { GPUOwnerError } from '../../errors.ts';
import { showValue } from '../../platform/index.ts';
import { findProject, openProject } from '../project/index.ts';
import type { Queue } from './queue.ts';
import { findSQLiteQueue, openSQLiteQueue } from './sqlite/index.ts';

export {
  type Attempt,
  type AttemptInfo,
  type Completed,
  type Completion,
  type Counts,
  lacksResult,
  MAX_DELAY_MS,
  type Management,
  NO_PID,
  type Pause,
  type Queue,
  QueueRemovedError,
  STATES,
  type State,
  type TaskRow,
  type WithoutResult,
} from './queue.ts';
export { commandText, damagedTasks, NO_COMMAND_TEXT, readJSON } from './records.ts';

/** Whether a URL names a queue on Redis. The rest of Redis's code isn't loaded for that. */
export function isRedisURL(url: string): boolean {
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
 * @param options create: false makes nothing, and answers null where there is no queue yet. mayBeReadOnly: a user who may only read a
 *   SQLite queue gets one that refuses changes
 * @throws ERR_QUEUE if it can't be used, ERR_INVALID_ARGUMENT for other URLs
 */
export function openQueue(url: string | null, project: string, options?: { create?: true }): Promise<Queue>;
export function openQueue(
  url: string | null,
  project: string,
  options: { create: boolean; mayBeReadOnly?: boolean },
): Promise<Queue | null>;
export async function openQueue(
  url: string | null,
  project: string,
  { create = true, mayBeReadOnly = false }: { create?: boolean; mayBeReadOnly?: boolean } = {},
): Promise<Queue | null> {
  if (url !== null && isRedisURL(url)) {
    // Only queues on Redis load its code.
    const { openBullMQQueue } = await import('./bullmq/index.ts');
    return openBullMQQueue(url, project, create);
  }
  let path: string;
  if (url !== null) path = pathOf(url, project);
  else {
    const found = create ? openProject(project) : findProject(project);
    if (found === null) return null;
    path = resolve(found.state, 'queue.db');
  }
  return create ? openSQLiteQueue(path) : findSQLiteQueue(path, mayBeReadOnly);
}

function pathOf(url: string, project: string): string {
  const path = /^sqlite:(.+)$/s.exec(url)?.[1];
  if (path === undefined || path.includes('\0')) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `${showValue(withoutPassword(url))} is not the URL of a queue; use sqlite:PATH, redis://HOST or rediss://HOST.`,
    );
  }
  return resolve(project, path.replace(/^\/\/(?=\/)/, '')); // sqlite:///a/b, as others write it
}
