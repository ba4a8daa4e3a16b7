import { sleep } from '../../../platform/index.ts';
import { seedOf, type TaskSpec } from '../../task/index.ts';
import { type Batch, enqueueInBatches, type MergedBatch } from '../enqueue.ts';
import { type Enqueued, MAX_BYTES, type Queue } from '../queue.ts';
import { phaseInName, taskName } from '../records.ts';
import { jobData, newToken, TaskJob } from './jobs.ts';
import { tryLock, unlock } from './lock-renewal.ts';
import type { JobStore } from './store.ts';

/** Tasks per operation, at most: others wait for some ten milliseconds at most. */
const BATCH = 500;
/** How long one process may take for a batch, before another one that adds tasks goes on, in ms. */
const TURN_MS = 10_000;

export function enqueue(
  store: JobStore,
  ...[tasks, options = {}]: Parameters<Queue['enqueue']>
): Promise<Enqueued> {
  return enqueueInBatches(tasks, options, { tasks: BATCH, bytes: MAX_BYTES }, (batch) =>
    inTurn(store, () => addBatch(store, batch)),
  );
}

/** One after the other: names have numbers without gaps. */
async function inTurn<T>({ connection }: JobStore, act: () => Promise<T>): Promise<T> {
  const token = newToken();
  while (!(await tryLock(connection, 'adding', token, TURN_MS))) await sleep(20);
  try {
    return await act();
  } finally {
    await unlock(connection, 'adding', token);
  }
}

async function addBatch(store: JobStore, { tasks, merge }: Batch): Promise<Enqueued> {
  const ids = [...new Set(tasks.map(({ id }) => id))];
  const numbers = await store.redis.zmscore(store.key('order'), ...ids);
  const numberOf = new Map(ids.map((id, at) => [id, numbers[at] ?? null]));
  const jobs = new Map<string, TaskJob>();
  await Promise.all(
    ids.map(async (id) => {
      const job = numberOf.get(id) === null ? null : await store.get(id);
      if (job !== null) jobs.set(id, job);
    }),
  );
  const places = await store.places();
  const known = new Map([...jobs].map(([id, job]) => [id, job.kept(places)]));
  const { enqueued, fresh, changed } = merge(known);
  for (const [id, kept] of changed) {
    const job = jobs.get(id) as TaskJob;
    await store.jobs.updateData({ id }, jobData(job.number, job.parameters, kept));
  }
  if (changed.size > 0) await store.notify();
  if (fresh.size > 0) await addFresh(store, fresh, numberOf);
  return enqueued;
}

/** Names and adds tasks. A repetition gives the same names to those that were named, and adds what is missing. */
async function addFresh(
  store: JobStore,
  fresh: MergedBatch['fresh'],
  numbers: ReadonlyMap<string, string | null>,
): Promise<void> {
  const counters = new Map<string, number>();
  const named = new Map<string, string>();
  let last = await store.redis.zcard(store.key('order'));
  const unnamed = [...fresh].filter(([id]) => numbers.get(id) === null);
  const phases = [...new Set(unnamed.map(([, { spec }]) => phaseInName(spec.phase)))];
  const before = phases.length === 0 ? [] : await store.redis.hmget(store.key('phases'), ...phases);
  for (const [at, phase] of phases.entries()) counters.set(phase, Number(before[at] ?? 0));
  const used = new Set<string>();
  const name = (spec: TaskSpec): string => {
    const phase = phaseInName(spec.phase);
    for (;;) {
      const counter = counters.get(phase) as number;
      const found = taskName(phase, counter, seedOf(spec.parameters));
      counters.set(phase, counter + 1);
      // A phase a and one that is called a_1 can come to the same name: then the next number has to do.
      if (!used.has(found)) {
        used.add(found);
        return found;
      }
    }
  };
  let rest = unnamed;
  while (rest.length > 0) {
    const names = rest.map(([, { spec }]) => name(spec));
    const taken = await store.redis.hmget(store.key('names'), ...names);
    const again: typeof rest = [];
    for (const [at, entry] of rest.entries()) {
      if (taken[at] == null) named.set(entry[0], names[at] as string);
      else again.push(entry);
    }
    rest = again;
  }
  const order = new Map(unnamed.map(([id]) => [id, ++last]));
  if (named.size > 0) {
    await store.connection.perform((client) =>
      client
        .multi()
        .zadd(store.key('order'), ...[...order].flatMap(([id, number]) => [number, id]))
        .hset(store.key('names'), ...[...named].flatMap(([id, each]) => [each, id]))
        .hset(store.key('phases'), ...[...counters].flat())
        .exec(),
    );
  }
  const lost = [...fresh.keys()].filter((id) => !named.has(id));
  for (const id of lost) order.set(id, Number(numbers.get(id)));
  if (lost.length > 0) {
    const all = Object.entries(await store.redis.hgetall(store.key('names')));
    for (const [each, id] of all) if (lost.includes(id)) named.set(id, each);
  }
  const timestamp = Date.now();
  await store.jobs.addJobs(
    [...fresh].map(([id, { parameters, kept }]) => ({
      jobId: id,
      job: {
        ...{ id, name: named.get(id) ?? id, timestamp, opts: { priority: TaskJob.priority(0) } },
        data: JSON.stringify(jobData(order.get(id) as number, parameters, kept)),
      },
    })),
  );
}
