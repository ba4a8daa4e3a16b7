import { setTimeout as pause } from 'node:timers/promises';
import { seedOf, stringifyValue, type TaskSpec, taskId } from '../../task/index.ts';
import { type Enqueued, LEAST_NEEDS, MAX_BYTES, type Needs, type Queue } from '../queue.ts';
import {
  areDifferent,
  commandText,
  conflict,
  conflictError,
  MAX_CONFLICTS,
  NO_COMMAND_TEXT,
  phaseInName,
  readCount,
  taskName,
} from '../records.ts';
import { jobData, newToken, type TaskData, TaskJob } from './jobs.ts';
import { tryLock, unlock } from './lock-renewal.ts';
import { parseNeeds } from './needs.ts';
import type { JobStore } from './store.ts';

/** Tasks per operation, at most: others wait for some ten milliseconds at most. */
const BATCH = 500;
/** How long one process may take for a batch, before another one that adds tasks goes on, in ms. */
const TURN_MS = 10_000;

interface Described {
  id: string;
  spec: TaskSpec;
  parameters: string;
  command: string;
  place: [string, string];
  /** The task was in an earlier batch, and must not have another command here. */
  isEarlier: boolean;
}

export async function enqueue(
  store: JobStore,
  tasks: Iterable<TaskSpec> | AsyncIterable<TaskSpec>,
  { replaceCommands = false, needs = {}, signal }: Parameters<Queue['enqueue']>[1] & {},
): Promise<Enqueued> {
  const total: Enqueued = { added: 0, known: 0, placed: 0 };
  /** Tasks of earlier batches, if commands may be replaced: two tasks of one sweep must not replace each other's. */
  const seen = replaceCommands ? new Set<string>() : null;
  let batch: Described[] = [];
  let size = 0;
  /** The batch that Redis has while the next one is prepared. */
  let sent: Promise<void> = Promise.resolve();
  const dispatch = async () => {
    const some = batch;
    for (const { id } of some) seen?.add(id);
    batch = [];
    size = 0;
    await sent;
    signal?.throwIfAborted();
    sent = send(some);
    sent.catch(() => {}); // the error is thrown by the next batch, or at the end
  };
  const send = async (some: readonly Described[]) => {
    const { added, known, placed } = await inTurn(store, () => addBatch(store, some, replaceCommands, needs));
    total.added += added;
    total.known += known;
    total.placed += placed;
  };
  try {
    for await (const spec of tasks) {
      const id = taskId(spec.parameters);
      const parameters = stringifyValue(spec.parameters);
      const command = commandText(spec.command);
      batch.push({
        id,
        spec,
        parameters,
        command,
        place: [spec.phase, spec.outputDirectory],
        isEarlier: seen?.has(id) ?? false,
      });
      size += parameters.length + command.length;
      if (batch.length === BATCH || size > MAX_BYTES) await dispatch();
    }
    if (batch.length > 0) await dispatch();
  } finally {
    await sent;
  }
  return total;
}

/** One after the other: names have numbers without gaps. */
async function inTurn<T>({ connection }: JobStore, act: () => Promise<T>): Promise<T> {
  const token = newToken();
  while (!(await tryLock(connection, 'adding', token, TURN_MS))) await pause(20);
  try {
    return await act();
  } finally {
    await unlock(connection, 'adding', token);
  }
}

async function addBatch(
  store: JobStore,
  batch: readonly Described[],
  replaceCommands: boolean,
  needs: Partial<Needs>,
): Promise<Enqueued> {
  const ids = [...new Set(batch.map(({ id }) => id))];
  const numbers = await store.redis.zmscore(store.key('order'), ...ids);
  const known = new Map<string, TaskJob>();
  await Promise.all(
    ids.map(async (id, at) => {
      const job = numbers[at] === null ? null : await store.get(id);
      if (job !== null) known.set(id, job);
    }),
  );
  refuseConflicts(batch, known, replaceCommands);
  const kinds = await setNeeds(store, ids, needs);
  const result: Enqueued = { added: 0, known: 0, placed: 0 };
  const fresh = new Map<string, { spec: TaskSpec; data: TaskData }>();
  const changed = new Map<string, { job: TaskJob; data: TaskData }>();
  const active = known.size === 0 ? new Set<string>() : await store.activeIds();
  for (const { id, spec, parameters, command, place } of batch) {
    const job = known.get(id);
    const entry =
      fresh.get(id) ??
      changed.get(id) ??
      (job === undefined ? undefined : { job, data: job.data(parameters) });
    if (entry === undefined) {
      fresh.set(id, {
        spec,
        data: {
          number: 0,
          parameters,
          command: spec.command,
          places: [place],
          once: spec.rerun === 'never',
          needs: kinds.get(id),
        },
      });
      result.added++;
      continue;
    }
    result.known++;
    const { data } = entry;
    const before = JSON.stringify(data);
    if (kinds.has(id)) data.needs = kinds.get(id);
    if (spec.rerun !== undefined) data.once = spec.rerun === 'never';
    const has = commandText(data.command);
    const state = job?.state(active.has(id));
    const mayReplace = job === undefined || (state !== 'active' && state !== 'completed');
    if (command !== NO_COMMAND_TEXT && has !== command && (has === NO_COMMAND_TEXT || mayReplace))
      data.command = spec.command;
    if (!data.places.some(([phase, directory]) => phase === place[0] && directory === place[1])) {
      data.places.push(place);
      result.placed++;
    }
    if (job !== undefined && JSON.stringify(data) !== before) changed.set(id, { job, data });
  }

  for (const [id, { data }] of changed) await store.jobs.updateData({ id } as never, jobData(data));
  if (changed.size > 0) await store.notify();
  if (fresh.size > 0) await addFresh(store, fresh, new Map(ids.map((id, at) => [id, numbers[at] ?? null])));
  return result;
}

/** @param known tasks that the queue has @throws ERR_INVALID_ARGUMENT for equal parameters with different commands */
function refuseConflicts(
  batch: readonly Described[],
  known: ReadonlyMap<string, TaskJob>,
  replaceCommands: boolean,
): void {
  const commands = new Map<string, string>();
  const conflicts: string[] = [];
  let count = 0;
  for (const { id, spec, command, isEarlier } of batch) {
    const job = known.get(id);
    const before = commands.get(id) ?? (job === undefined ? undefined : commandText(job.task().command));
    const differs = before !== undefined && areDifferent(JSON.parse(before), spec.command);
    if (differs && (!replaceCommands || isEarlier || commands.has(id))) {
      count++;
      if (conflicts.length < MAX_CONFLICTS)
        conflicts.push(conflict(job?.json.name ?? phaseInName(spec.phase), before, command));
    }
    if (command !== NO_COMMAND_TEXT) commands.set(id, command);
  }
  if (count > 0) throw conflictError(conflicts, count);
}

/** Names and adds tasks. A repetition gives the same names to those that were named, and adds what is missing. */
async function addFresh(
  store: JobStore,
  fresh: ReadonlyMap<string, { spec: TaskSpec; data: TaskData }>,
  numbers: ReadonlyMap<string, string | null>,
): Promise<void> {
  const counters = new Map<string, number>();
  const named = new Map<string, string>();
  let last = await store.redis.zcard(store.key('order'));
  const unnamed = [...fresh].filter(([id]) => numbers.get(id) === null);
  const phases = [...new Set(unnamed.map(([, { spec }]) => phaseInName(spec.phase)))];
  const before = phases.length === 0 ? [] : await store.redis.hmget(store.key('phases'), ...phases);
  for (const [at, phase] of phases.entries()) counters.set(phase, readCount(before[at]));
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
  if (named.size > 0) {
    const order = unnamed.flatMap(([id, { data }]) => {
      data.number = ++last;
      return [last, id];
    });
    await store.connection.perform((client) =>
      client
        .multi()
        .zadd(store.key('order'), ...order)
        .hset(store.key('names'), ...[...named].flatMap(([id, each]) => [each, id]))
        .hset(store.key('phases'), ...[...counters].flat())
        .exec(),
    );
  }
  const lost = [...fresh.keys()].filter((id) => !named.has(id));
  for (const id of lost) (fresh.get(id) as { data: TaskData }).data.number = readCount(numbers.get(id));
  if (lost.length > 0) {
    const all = Object.entries(await store.redis.hgetall(store.key('names')));
    for (const [each, id] of all) if (lost.includes(id)) named.set(id, each);
  }
  const timestamp = Date.now();
  await store.jobs.addJobs(
    [...fresh].map(([id, { data }]) => ({
      jobId: id,
      job: {
        ...{ id, name: named.get(id) ?? id, timestamp, opts: { priority: TaskJob.priority(0) } },
        data: JSON.stringify(jobData(data)),
      } as never,
    })),
  );
}

/** @returns by id, what is said of them now; undefined: the least */
async function setNeeds(
  store: JobStore,
  ids: readonly string[],
  { gpus, memory }: Partial<Needs>,
): Promise<Map<string, Needs | undefined>> {
  const kinds = new Map<string, Needs | undefined>();
  if (gpus === undefined && memory === undefined) return kinds;
  const key = store.key('needs');
  const before = await store.redis.hmget(key, ...ids);
  for (const [at, id] of ids.entries()) {
    const had = before[at] == null ? LEAST_NEEDS : parseNeeds(before[at] as string);
    const now = { gpus: gpus ?? had.gpus, memory: memory ?? had.memory };
    const isLeast = now.gpus === LEAST_NEEDS.gpus && now.memory === LEAST_NEEDS.memory;
    kinds.set(id, isLeast ? undefined : now);
  }
  const set = [...kinds].flatMap(([id, each]) => (each ? [id, `${each.gpus} ${each.memory}`] : []));
  const least = ids.filter((id) => kinds.get(id) === undefined);
  if (set.length > 0) {
    await store.redis.hset(store.key('settings'), 'unequal', 1);
    await store.redis.hset(key, ...set);
  }
  if (least.length > 0) await store.redis.hdel(key, ...least);
  return kinds;
}
