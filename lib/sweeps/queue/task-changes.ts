import { showValue, usageError } from '../../platform/index.ts';
import type { Queue } from './queue.ts';

/** Finds the id of a named task. @throws ERR_INVALID_ARGUMENT for a name that no task has, or several */
export async function resolveTask(queue: Queue, name: string): Promise<string> {
  const ids: string[] = [];
  for await (const { task } of queue.tasks({ match: name })) ids.push(task.id);
  const [id] = ids;
  if (id === undefined) {
    throw usageError(
      `no task has the name or id ${showValue(name)}; gpu-owner exp export lists completed tasks, exp status lists running and failed ones`,
    );
  }
  if (ids.length > 1) {
    throw usageError(`${showValue(name)} is the beginning of several ids; write more characters`);
  }
  return id;
}

/** @throws as {@link resolveTask} */
async function resolveTasks(queue: Queue, names: readonly string[]): Promise<string[]> {
  const ids = new Set<string>();
  for (const name of names) ids.add(await resolveTask(queue, name));
  return [...ids];
}

/** The names of tasks that were changed, and how many of those that a user named are as they were. */
interface ChangedTasks {
  names: readonly string[];
  unchanged: number;
}

/** States that stand for all tasks in them where tasks are retried. */
export const RETRIED_STATES = ['failed', 'cancelled'] as const;

/** Starts tasks again. @param words names, ids and {@link RETRIED_STATES} @throws as {@link resolveTask} */
export async function retryTasks(queue: Queue, words: readonly string[]): Promise<ChangedTasks> {
  const isState = (word: string) => RETRIED_STATES.some((state) => state === word);
  const ids = await resolveTasks(
    queue,
    words.filter((word) => !isState(word)),
  );
  const again = ids.length > 0 ? await queue.retry({ ids }) : [];
  const names = [...again];
  for (const state of RETRIED_STATES) {
    if (words.includes(state)) names.push(...(await queue.retry({ state })));
  }
  return { names, unchanged: ids.length - again.length };
}

/** Cancels tasks. @param words names and ids, or `all` alone @throws as {@link resolveTask} */
export async function cancelTasks(queue: Queue, words: readonly string[]): Promise<ChangedTasks> {
  if (words.length === 1 && words[0] === 'all') return { names: await queue.cancel('all'), unchanged: 0 };
  const ids = await resolveTasks(queue, words);
  const names = await queue.cancel({ ids });
  return { names, unchanged: ids.length - names.length };
}
