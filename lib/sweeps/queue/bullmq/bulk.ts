import { stringifyValue } from '../../task/index.ts';
import type { Queue, Selection } from '../queue.ts';
import { isDone, serverTime } from './connection.ts';
import { enqueue } from './enqueue.ts';
import { newToken, TABLE, TaskJob } from './jobs.ts';
import { isId, type JobStore, PAGE } from './store.ts';

/** The methods of a queue that change many tasks. */
export function bulkMethods(
  store: JobStore,
): Pick<Queue, 'enqueue' | 'importResults' | 'retry' | 'cancel' | 'forgetRetracted'> {
  return {
    async enqueue(tasks, options = {}) {
      await store.check();
      return enqueue(store, tasks, options);
    },

    async importResults(rows) {
      const answers: boolean[] = [];
      for (let from = 0; from < rows.length; from += PAGE) {
        const some = rows.slice(from, from + PAGE);
        const results = new Map<string, string>();
        for (const { id, result } of some)
          if (isId(id) && !results.has(id)) results.set(id, stringifyValue(result));
        const imported = await importSome(store, results);
        answers.push(...some.map(({ id }) => imported.delete(id)));
      }
      return answers;
    },

    retry: (selection) => select(store, selection, retryAll),
    cancel: (selection) => select(store, selection, cancelAll),

    async forgetRetracted(ids) {
      if (ids.length === 0) return;
      await store.redis.zrem(store.key('retracted'), ...ids);
      await store.notify();
    },
  };
}

/** @returns those that were cancelled */
async function cancelAll(store: JobStore, jobs: readonly TaskJob[]): Promise<TaskJob[]> {
  const places = await store.places();
  const until = (await serverTime(store.redis)) + store.connection.lock;
  const cancel = async (job: TaskJob, token: string, status: TaskJob['status']) => {
    if (!(await store.fail(job.id, token, { ...status, error: job.status.error }, 'cancelled'))) return null;
    await store.redis.sadd(store.key('cancelled'), job.id);
    return job;
  };
  const active = jobs.filter((job) => job.state(places) === 'active');
  const ended = await Promise.all(
    active.map(async (job) => {
      const token = job.holder?.token as string;
      return cancel(job, token, job.ended('cancelled', 'cancelled', { held: { token, until } }));
    }),
  );
  const waiting = await store.seizeAll(
    jobs.filter((job) => job.state(places) === 'pending'),
    newToken,
  );
  const taken = await Promise.all(
    waiting.map((job) =>
      cancel(job, job.holder?.token as string, { ...job.status, forgiven: job.status.forgiven + 1 }),
    ),
  );
  return [...ended, ...taken].filter((job) => job !== null);
}

/** @returns those that begin again */
async function retryAll(store: JobStore, jobs: readonly TaskJob[]): Promise<TaskJob[]> {
  const finished = jobs.filter((job) => job.finished !== null);
  await Promise.all(
    finished.map((job) => (job.finished === 'completed' ? retract(store, job) : revive(store, job))),
  );
  return finished;
}

async function revive(store: JobStore, job: TaskJob, status = job.status): Promise<void> {
  const { id, json } = job;
  await store.save(id, { ...status, error: null, forgiven: json.attemptsMade + json.stalledCounter });
  await isDone(store.jobs.retryFinishedJob({ id, opts: json.opts }, job.finished ?? 'failed'));
  await store.jobs.changePriority(id, TaskJob.priority(0));
  await store.redis.srem(store.key('cancelled'), id);
}

async function retract(store: JobStore, job: TaskJob): Promise<void> {
  const completions = store.key('completions');
  await store.connection.perform((client) =>
    client.multi().zadd(store.key('retracted'), job.number, job.id).zrem(completions, job.id).exec(),
  );
  const status = job.ended('completed', null);
  const last = status.attempts.at(-1);
  if (job.last !== null && last !== undefined) last.ended = job.json.finishedOn ?? last.ended;
  await revive(store, job, status);
  await store.redis.zrem(completions, job.id); // it may have been numbered meanwhile
}

async function select(
  store: JobStore,
  selection: Selection | 'all',
  act: (store: JobStore, jobs: readonly TaskJob[]) => Promise<TaskJob[]>,
): Promise<string[]> {
  await store.check();
  const names = new Map<string, string>();
  const state = selection === 'all' || 'ids' in selection ? undefined : selection.state;
  const ids =
    selection !== 'all' && 'ids' in selection
      ? await resolve(store, selection.ids)
      : await store.inOrder(state);
  for (let from = 0; from < ids.length; from += PAGE) {
    const page = ids.slice(from, from + PAGE);
    const jobs = (await Promise.all(page.map((id) => store.get(id)))).filter((job) => job !== null);
    const places = await store.places();
    const wanted = jobs.filter((job) => state === undefined || job.state(places) === state);
    for (const { id, json } of await act(store, wanted)) names.set(id, json.name);
  }
  if (names.size > 0) await store.notify();
  return ids.flatMap((id) => names.get(id) ?? []);
}

/** Ids of tasks by their ids or names. */
async function resolve(store: JobStore, words: readonly string[]): Promise<string[]> {
  if (words.length === 0) return [];
  const named = await store.redis.hmget(store.key('names'), ...words);
  return [...new Set(words.map((word, at) => (isId(word) ? word : named[at])).filter((id) => id != null))];
}

/** @param results by the ids of tasks @returns those that were completed by them */
async function importSome(store: JobStore, results: ReadonlyMap<string, string>): Promise<Set<string>> {
  const done = new Set<string>();
  const ids = [...results.keys()];
  if (ids.length === 0) return done;
  const retracted = await store.redis.zmscore(store.key('retracted'), ...ids);
  const jobs = await Promise.all(ids.filter((_, at) => retracted[at] === null).map((id) => store.get(id)));
  const places = await store.places();
  const wanted = jobs.filter(
    (job) => job !== null && !['active', 'completed'].includes(job.state(places)),
  ) as TaskJob[];
  const seized = await store.seizeAll(wanted, () => `${TABLE}${newToken()}`);
  // In the order of the rows.
  for (const [id, result] of results) {
    const job = seized.find((each) => each.id === id);
    if (job === undefined) continue;
    await store.save(id, { ...job.status, forgiven: job.status.forgiven + 1 });
    if (await store.complete(id, job.holder?.token as string, result)) done.add(id);
  }
  return done;
}
