import { schema } from '../../../platform/index.ts';
import { type AttemptInfo, MAX_BYTES, type Queries, type Task, type TaskRow } from '../queue.ts';
import { readRecord } from '../records.ts';
import type { Ended, Last, TaskJob } from './jobs.ts';
import { type JobStore, PAGE, sizeOf } from './store.ts';

const { jsonOf, nullable, record, text, whole } = schema;
const LOG = jsonOf(record({ path: text, from: whole(), to: nullable(whole()) }));

export function queryMethods(store: JobStore): Queries {
  return {
    async lookUp(ids) {
      const found: (TaskRow | null)[] = [];
      for await (const row of rows(store, ids)) found.push(row);
      return found;
    },

    async counts() {
      await store.check();
      return store.counts();
    },

    nextTime: () => store.nextTime(),

    async *tasks({ state, match } = {}) {
      await store.check();
      const ids = match === undefined ? await store.inOrder(state) : await matching(store, match);
      for await (const row of rows(store, ids))
        if (row !== null && (state === undefined || row.state === state)) yield row;
    },

    async attempts(which) {
      await store.check();
      if (which === 'living') return living(store);
      const job = await store.get(which.taskId);
      if (job === null) return [];
      const past = await Promise.all(job.status.attempts.map((each) => infoOf(store, job, each)));
      const last = job.last;
      const isCompleted = job.finished === 'completed';
      if (last === null || (!isCompleted && (await store.state(job)) !== 'active')) return past;
      const end = isCompleted ? { outcome: 'completed' as const, ended: job.json.finishedOn ?? 0 } : {};
      return [...past, await infoOf(store, job, { ...last, ...end })];
    },

    async completions(after, limit) {
      await store.check();
      await numberCompletions(store);
      const range = [store.key('completions'), `(${after}`, '+inf', 'WITHSCORES', 'LIMIT', 0, limit] as const;
      const entries = await store.redis.zrangebyscore(...range);
      const found = [];
      let size = 0;
      let at = 0;
      for await (const job of store.read(entries.filter((_, at) => at % 2 === 0))) {
        const sequence = Number(entries[2 * at++ + 1]);
        if (job?.finished !== 'completed') continue;
        size += sizeOf(job);
        if (found.length > 0 && size > MAX_BYTES) break;
        found.push(job.completion(sequence));
      }
      return found;
    },

    async retracted() {
      const tasks: Task[] = [];
      const ids = await store.redis.zrange(store.key('retracted'), '0', '-1');
      for await (const job of store.read(ids)) if (job !== null) tasks.push(job.task());
      return tasks;
    },
  };
}

/** Numbers completions that have none yet, in their order: by milliseconds. */
async function numberCompletions(store: JobStore): Promise<void> {
  const key = store.key('completions');
  const [[completed = 0], known] = await Promise.all([
    store.jobs.getCounts(['completed']),
    store.redis.zcard(key),
  ]);
  if (known > completed) {
    // A process ended while it retried some.
    const there = new Set(await store.ids('completed'));
    const gone = (await store.redis.zrange(key, '0', '-1')).filter((id) => !there.has(id));
    if (gone.length > 0) await store.redis.zrem(key, ...gone);
  }
  const fresh: string[] = [];
  for (let from = 0; fresh.length < completed - known; from += PAGE) {
    const ids = (await store.jobs.getRanges(['completed'], from, from + PAGE - 1, false)).flat();
    if (ids.length === 0) break;
    const scores = await store.redis.zmscore(key, ...ids);
    fresh.push(...ids.filter((_, at) => scores[at] === null));
  }
  if (fresh.length === 0) return;
  const last = await store.redis.hincrby(store.key('settings'), 'sequence', fresh.length);
  const entries = fresh.reverse().flatMap((id, at) => [last - fresh.length + 1 + at, id]);
  await store.redis.zadd(key, 'NX', ...(entries as [number, string]));
}

async function* rows(store: JobStore, ids: readonly string[]): AsyncGenerator<TaskRow | null> {
  const key = store.key('completions');
  const places = await store.places();
  await numberCompletions(store);
  for await (const job of store.read(ids)) {
    const isCompleted = job?.finished === 'completed';
    let sequence = isCompleted ? await store.redis.zscore(key, job.id) : null;
    if (isCompleted && sequence === null) {
      await numberCompletions(store); // it was completed since
      sequence = await store.redis.zscore(key, job.id);
    }
    yield job?.row(places, sequence === null ? null : Number(sequence)) ?? null;
  }
}

async function infoOf(store: JobStore, job: TaskJob, attempt: Last & Partial<Ended>): Promise<AttemptInfo> {
  const { token, name, host, pid, gpus, since, ended = null, outcome = null, error = null } = attempt;
  const log = await store.redis.hget(store.key('logs'), token);
  return {
    token: `${token}.${job.id}`,
    taskId: job.id,
    taskName: job.json.name,
    worker: { name, host, pid, gpus },
    ...{ since, ended, outcome, error },
    log: log === null ? null : readRecord('a log', LOG, log),
  };
}

async function living(store: JobStore): Promise<AttemptInfo[]> {
  const jobs: [TaskJob, Last][] = [];
  for await (const job of store.read(await store.ids('active')))
    if (job?.last != null) jobs.push([job, job.last]);
  const found = await Promise.all(jobs.map(([job, last]) => infoOf(store, job, last)));
  return found.sort((one, other) => one.since - other.since);
}

async function matching(store: JobStore, match: string): Promise<string[]> {
  if (match === '') return [];
  const found = await store.redis.hget(store.key('names'), match);
  const ids = match.startsWith('t-') ? (await store.inOrder()).filter((id) => id.startsWith(match)) : [];
  return [...new Set([...ids, ...(found === null ? [] : [found])])];
}
