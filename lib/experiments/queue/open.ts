import { resolve } from 'node:path';
import { GPUOwnerError } from '../../errors.ts';
import { showValue } from '../../platform/index.ts';
import { findProject, openProject } from '../project/index.ts';
import type { Queue } from './queue.ts';
import { findSQLiteQueue, openSQLiteQueue } from './sqlite/engine.ts';

/** Whether a URL names a queue on Redis. Apart from what understands it, which others needn't load. */
export function isRedisURL(url: string): boolean {
  return /^(?:rediss?|redis\+unix):/i.test(url);
}

/**
 * For people: what stands before the host is nobody's business, also where it has a '/' or '?' in it that isn't encoded. Of all that may
 * be behind the host, only the parameter `ca` has an '@'.
 */
export function withoutPassword(url: string): string {
  return url.replace(/^([a-z+]+:\/\/)(?:(?![?&]ca=).)*@/is, '$1');
}

/**
 * The queue of a project.
 * @param url `sqlite:PATH`, from the project directory on if it is relative; `redis://HOST`, `rediss://HOST` and
 *   `redis+unix:///PATH` (see bullmq/address.ts); null: the project's own
 * @param project its directory
 * @param options create: false for those who only look: nothing is made, and the answer is null where there is no queue yet. look: who may
 *   only read a SQLite queue gets one that can be asked, and refuses changes
 * @throws ERR_QUEUE if it can't be used, ERR_INVALID_ARGUMENT for other URLs
 */
export function openQueue(url: string | null, project: string, options?: { create?: true }): Promise<Queue>;
export function openQueue(
  url: string | null,
  project: string,
  options: { create: boolean; look?: boolean },
): Promise<Queue | null>;
export async function openQueue(
  url: string | null,
  project: string,
  { create = true, look = false }: { create?: boolean; look?: boolean } = {},
): Promise<Queue | null> {
  if (url !== null && isRedisURL(url)) {
    // Nothing of Redis is loaded for others.
    const { openBullMQQueue } = await import('./bullmq/engine.ts');
    return openBullMQQueue(url, project, create);
  }
  if (url !== null) {
    const path = pathOf(url, project);
    return create ? openSQLiteQueue(path) : findSQLiteQueue(path, look);
  }
  const found = create ? openProject(project) : findProject(project);
  if (found === null) return null;
  const path = resolve(found.state, 'queue.db');
  return create ? openSQLiteQueue(path) : findSQLiteQueue(path, look);
}

function pathOf(url: string, project: string): string {
  const path = /^sqlite:(.+)$/s.exec(url)?.[1];
  if (path === undefined || path.includes('\0')) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `${showValue(withoutPassword(url))} names no queue; what works is sqlite:PATH, redis://HOST and rediss://HOST.`,
    );
  }
  return resolve(project, path.replace(/^\/\/(?=\/)/, '')); // sqlite:///a/b, as others write it
}
