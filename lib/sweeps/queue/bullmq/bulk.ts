import { stringifyValue } from '../../task/index.ts';
import type { Queue, Selection } from '../queue.ts';
import { isDone, serverTime } from './connection.ts';
import { enqueue } from './enqueue.ts';
import { type Holder, NEVER, newToken, PARKED, TaskJob } from './jobs.ts';
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

    retry: (selection) => select(store, selection, retry),
    cancel: (selection) => select(store, selection, cancel),

    async forgetRetracted(ids) {
      if (ids.length === 0) return;
      await store.redis.zrem(store.key('retracted'), ...ids);
      await store.notify();
    },
  };
}

async function cancel(store: JobStore, job: TaskJob): Promise<boolean> {
  const { id, json, holder } = job;
  const state = await store.state(job);
  if (state === 'active' && holder !== null) {
    const until = (await serverTime(store.redis)) + store.connection.lock;
    const isHeld = holder.kind !== 'lifetime';
    const held = isHeld ? { held: { token: holder.token, until } } : {};
    const { error } = job.status;
    const status = { ...job.ended('cancelled', 'cancelled', held), error, ended: Date.now() };
    if (await store.park(id, holder.token, status, true)) return true;
    await store.endLost();
    const again = await store.get(id);
    return again !== null && (await store.state(again)) === 'pending' && cancel(store, again);
  }
  if (state !== 'pending') return false;
  await store.save(id, { ...job.status, ended: Date.now(), due: undefined });
  await store.jobs.changePriority(id, PARKED);
  if ((json.delay ?? 0) > 0) await isDone(store.jobs.changeDelay(id, NEVER - Date.now()));
  // A worker may have got it meanwhile.
  const now = await store.get(id);
  if (now === null || now.finished !== null) return false;
  if ((await store.jobs.getState(id)) !== 'active') return true;
  now.json.priority = 0;
  return cancel(store, now);
}

async function retry(store: JobStore, job: TaskJob): Promise<boolean> {
  const { id, json, status, finished } = job;
  const state = await store.state(job);
  if (state === 'pending' || state === 'active') return false;
  const { error: _, ended: __, by, ...rest } = status;
  const { results } = status;
  const fresh = { ...rest, forgiven: json.attemptsMade + json.stalledCounter, retried: Date.now() };
  const again = async () => {
    if (finished !== null) await isDone(store.jobs.retryFinishedJob({ id, opts: json.opts }, finished));
    await store.jobs.changePriority(id, TaskJob.priority(0));
  };
  if (finished === 'completed') {
    await store.connection.perform((client) =>
      client.multi().zadd(store.key('retracted'), job.number, id).zrem(store.key('completions'), id).exec(),
    );
    const { attempts } = by === undefined && job.completedBy !== null ? job.ended('completed', null) : status;
    const over = json.finishedOn ?? Date.now();
    // A result that comes late would be one of before.
    const past = attempts.map((each) => ({
      ...each,
      ...(each.outcome === 'lost' ? { kind: 'heartbeat' as const } : {}),
      ...(results?.[each.token] === undefined ? {} : { submitted: true as const }),
    }));
    const last = past.at(-1);
    if (last?.outcome === 'completed') last.ended = over;
    await store.save(id, { ...fresh, attempts: past, results: undefined });
    await again();
    await store.redis.zrem(store.key('completions'), id);
  } else if (finished === 'failed') {
    await store.save(id, fresh);
    await again();
  } else {
    const wait = await store.held(job);
    await store.save(id, wait > 0 ? { ...fresh, due: Date.now() + wait } : fresh);
    await again();
    if (wait > 0) await isDone(store.jobs.changeDelay(id, wait));
    else await isDone(store.jobs.promote(id));
  }
  await store.notify();
  return true;
}

async function select(
  store: JobStore,
  selection: Selection | 'all',
  act: (store: JobStore, job: TaskJob) => Promise<boolean>,
): Promise<string[]> {
  await store.check();
  const names: string[] = [];
  const ids =
    selection !== 'all' && 'ids' in selection
      ? await resolve(store, selection.ids)
      : await store.inOrder(selection === 'all' ? undefined : selection.state);
  const active = selection === 'all' || 'ids' in selection ? null : await store.activeIds();
  for (let from = 0; from < ids.length; from += PAGE) {
    const some = await Promise.all(ids.slice(from, from + PAGE).map((id) => store.get(id)));
    const acted = await Promise.all(
      some.map(async (job) => {
        if (job === null) return null;
        const isWanted =
          active === null || job.state(active.has(job.id)) === (selection as { state: string }).state;
        return isWanted && (await act(store, job)) ? job.json.name : null;
      }),
    );
    names.push(...acted.filter((name) => name !== null));
  }
  if (names.length > 0) await store.notify();
  return names;
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
  const found = await Promise.all(
    ids.map(async (id, at) => {
      const job = retracted[at] === null ? await store.get(id) : null;
      const isOpen = job !== null && ['pending', 'failed', 'cancelled'].includes(await store.state(job));
      return isOpen ? job : null;
    }),
  );
  const wanted = found.filter((job) => job !== null);
  const worker = { name: '', host: '', pid: 0, gpus: [], kind: 'table' as const };
  const seized = await store.seizeAll(wanted, (): Holder => ({ ...worker, token: newToken() }));
  // In the order of the rows.
  for (const [id, result] of results) {
    const job = seized.find((each) => each.id === id);
    if (job === undefined) continue;
    await store.save(id, { ...job.status, forgiven: job.status.forgiven + 1, due: undefined });
    if (await store.complete(id, job.holder?.token as string, result)) done.add(id);
  }
  return done;
}
