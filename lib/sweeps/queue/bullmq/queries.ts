import { type AttemptInfo, MAX_BYTES, type Queries, type Task, type TaskRow } from '../queue.ts';
import { attemptInfoOf, readRecord } from '../records.ts';
import type { Ended, Last, TaskJob } from './jobs.ts';
import { type JobStore, PAGE, sizeOf } from './store.ts';

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

    nextTime: () => nextTime(store),

    async *tasks({ state, match, limit = Number.POSITIVE_INFINITY } = {}) {
      await store.check();
      const ids = match === undefined ? await store.inOrder(state) : await matching(store, match);
      let left = limit;
      if (left <= 0) return;
      for await (const row of rows(store, ids)) {
        if (row === null || (state !== undefined && row.state !== state)) continue;
        yield row;
        if (--left <= 0) return;
      }
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
      const found = [];
      for await (const [job, sequence] of completedJobs(store, after, limit, true))
        found.push(job.completion(sequence));
      return found;
    },

    async completed(after, limit) {
      const found = [];
      for await (const [job, sequence] of completedJobs(store, after, limit, false))
        found.push(job.completed(sequence));
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

async function nextTime(store: JobStore): Promise<number | null> {
  const { delayed } = await store.delayed();
  if (delayed.length === 0) return null;
  if ((await store.waitingIds()).length > 0) return null;
  const next = Math.min(...delayed.map(({ status }) => status.due ?? 0));
  return next <= Date.now() ? null : next;
}

/** Numbers completions that have none yet, in their order: by milliseconds. */
async function numberCompletions(store: JobStore) {
  const [[completed = 0], known] = await Promise.all([
    store.jobs.getCounts(['completed']),
    store.redis.zcard(store.key('completions')),
  ]);
  if (known > completed) {
    // A process ended while it retried some.
    const there = new Set(await store.ids('completed'));
    const gone = (await store.redis.zrange(store.key('completions'), '0', '-1')).filter(
      (id) => !there.has(id),
    );
    if (gone.length > 0) await store.redis.zrem(store.key('completions'), ...gone);
  }
  const fresh: string[] = [];
  for (let from = 0; fresh.length < completed - known; from += PAGE) {
    const ids = (await store.jobs.getRanges(['completed'], from, from + PAGE - 1, false)).flat();
    if (ids.length === 0) break;
    const scores = await store.redis.zmscore(store.key('completions'), ...ids);
    fresh.push(...ids.filter((_, at) => scores[at] === null));
  }
  if (fresh.length === 0) return;
  const last = await store.redis.hincrby(store.key('settings'), 'sequence', fresh.length);
  const entries = fresh.reverse().flatMap((id, at) => [last - fresh.length + 1 + at, id]);
  await store.redis.zadd(store.key('completions'), 'NX', ...(entries as [number, string]));
}

/** Completed jobs behind a number, with theirs. */
async function* completedJobs(
  store: JobStore,
  after: number,
  limit: number,
  withResults: boolean,
): AsyncGenerator<[job: TaskJob, sequence: number]> {
  await store.check();
  await numberCompletions(store);
  const found = await store.redis.zrangebyscore(
    store.key('completions'),
    `(${after}`,
    '+inf',
    'WITHSCORES',
    'LIMIT',
    0,
    limit,
  );
  const ids = found.filter((_, at) => at % 2 === 0);
  let at = 0;
  let size = 0;
  for await (const job of store.read(ids)) {
    const sequence = Number(found[2 * at++ + 1]);
    if (job?.finished !== 'completed') continue;
    size += withResults ? sizeOf(job) : job.json.data.length;
    if (at > 1 && size > MAX_BYTES) return;
    yield [job, sequence];
  }
}

async function* rows(store: JobStore, ids: readonly string[]): AsyncGenerator<TaskRow | null> {
  const active = await store.activeIds();
  let sequences: (string | null)[] = [];
  let at = 0;
  for await (const job of store.read(ids)) {
    if (at % PAGE === 0) {
      await numberCompletions(store);
      sequences = await store.redis.zmscore(store.key('completions'), ...ids.slice(at, at + PAGE));
    }
    const sequence = sequences[at++ % PAGE] ?? null;
    if (job === null) {
      yield null;
      continue;
    }
    // Tasks that were completed since have no number yet.
    const isNew = job.finished === 'completed' && sequence === null;
    if (isNew) await numberCompletions(store);
    const number = isNew ? await store.redis.zscore(store.key('completions'), job.id) : sequence;
    yield job.row(
      active.has(job.id),
      job.finished === 'completed' && number !== null ? Number(number) : null,
    );
  }
}

async function infoOf(
  store: JobStore,
  job: TaskJob,
  { name: worker, token, submitted, ...attempt }: Last & Partial<Ended>,
): Promise<AttemptInfo> {
  const { path, from, to } = readRecord(await store.redis.hget(store.key('logs'), token));
  return attemptInfoOf({
    ...{ ended: null, outcome: null, error: null, ...attempt, worker, id: job.id, name: job.json.name },
    ...{ log: path, log_from: from, log_to: to },
    token: `${token}.${job.id}`,
    submitted: submitted === true || job.status.results?.[token] !== undefined,
  });
}

async function living(store: JobStore): Promise<AttemptInfo[]> {
  const jobs: [TaskJob, Last][] = [];
  for await (const job of store.read(await store.ids('active')))
    if (job?.last != null && !job.isParked) jobs.push([job, job.last]);
  const found = await Promise.all(jobs.map(([job, last]) => infoOf(store, job, last)));
  return found.sort((one, other) => one.since - other.since);
}

async function matching(store: JobStore, match: string): Promise<string[]> {
  if (match === '') return [];
  const found = await store.redis.hget(store.key('names'), match);
  const ids = match.startsWith('t-') ? (await store.inOrder()).filter((id) => id.startsWith(match)) : [];
  return [...new Set([...ids, ...(found === null ? [] : [found])])];
}
