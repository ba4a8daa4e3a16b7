import { stringifyValue } from '../../task/index.ts';
import {
  type Attempt,
  MAX_DELAY_MS,
  type Queue,
  type State,
  type TaskFailure,
  type WorkerInfo,
} from '../queue.ts';
import { type Holder, newToken, TaskJob } from './jobs.ts';
import type { LockRenewal } from './lock-renewal.ts';
import type { JobStore } from './store.ts';

/** Jobs that are looked at for one that can be started. */
const MAX_TRIES = 1_000;

/** The methods of a queue that begin and end attempts. */
export function attemptMethods(
  store: JobStore,
  renewal: LockRenewal,
): Pick<Queue, 'take' | 'endLost' | 'setLog' | 'submit' | 'complete' | 'fail' | 'requeue'> {
  /** Ends the attempt, whatever the answer: its process has nothing more to do with the task. */
  const ended = <T>(token: string, answer: T): T => {
    renewal.remove(token);
    return answer;
  };

  return {
    take: (worker, { lifetime } = {}) => take(store, renewal, worker, lifetime),

    async endLost() {
      await store.check();
      await store.endLost();
    },

    async setLog(token, { path, from, to }) {
      const { lock, job } = await jobOf(store, token);
      if (job === null) return;
      const host = [job.holder, ...job.status.attempts].find((each) => each?.token === lock)?.host;
      if (host === undefined) return;
      // Beside the line for dashboards, whose text is no data.
      await store.redis.hset(store.key('logs'), lock, JSON.stringify({ path, from, to }));
      await store.jobs.addLog(job.id, `${lock} its output is on ${host}: ${path} (${from}-${to ?? ''})`);
      await store.notify();
    },

    async submit(token, result) {
      const { lock, job } = await jobOf(store, token);
      if (job === null || job.finished === 'completed' || job.isParked) return false;
      const lost = job.status.attempts.find((each) => each.token === lock);
      const mayComplete = job.last?.token === lock || (lost?.outcome === 'lost' && lost.kind !== 'heartbeat');
      if (!mayComplete) return false;
      const results = { ...job.status.results, [lock]: stringifyValue(result) };
      return store.save(job.id, { ...job.status, results });
    },

    async complete(token, result) {
      return ended(
        token,
        await complete(store, renewal, token, result === null ? null : stringifyValue(result)),
      );
    },

    async fail(token, failure) {
      return ended(token, await fail(store, token, failure));
    },

    async requeue(token, why, delay = 0) {
      return ended(token, await requeue(store, token, why, delay));
    },
  };
}

async function take(
  store: JobStore,
  renewal: LockRenewal,
  worker: WorkerInfo,
  lifetime?: number,
): Promise<Attempt | null> {
  for (let hasLooked = false, tries = 0; tries < MAX_TRIES; tries++) {
    const token = newToken();
    const holder: Holder = { ...worker, token, kind: lifetime === undefined ? 'heartbeat' : 'lifetime' };
    const asked = renewal.time;
    const job = (await store.isPaused()) ? null : await store.next(holder);
    if (job === null) {
      if (hasLooked || (await store.endLost()) === 0) return null;
      hasLooked = true;
      continue;
    }
    const attempt = await begin(store, renewal, job, holder, lifetime, asked);
    if (attempt !== null) return attempt;
  }
  return null;
}

/** null: the job that BullMQ has given is none to be started. */
async function begin(
  store: JobStore,
  renewal: LockRenewal,
  job: TaskJob,
  { token }: Holder,
  lifetime: number | undefined,
  asked: number,
): Promise<Attempt | null> {
  const { id, status } = job;
  if (job.isParked) {
    await store.park(id, token, status, false);
    return null;
  }
  const wait = await store.held(job);
  if (wait > 0) {
    const due = Date.now() + wait;
    await store.requeue(id, token, { ...status, due }, TaskJob.priority(job.starts(false)), wait);
    return null;
  }
  if (job.isExhausted) {
    await store.failLost(job, token);
    return null;
  }
  if (await store.isPaused()) {
    await store.putBack(id, token);
    return null;
  }
  const task = job.task();
  if (lifetime !== undefined) await store.jobs.extendLock(id, token, Math.ceil(lifetime));
  const kept = renewal.add(`${token}.${id}`, lifetime !== undefined, asked);
  const start = job.starts(false) + 1;
  return { token: `${token}.${id}`, task, start, descriptors: [], isOnce: job.retries === 0, ...kept };
}

async function jobOf(store: JobStore, token: string) {
  const { lock, id } = partsOf(token);
  const job = lock === '' ? null : await store.get(id);
  return { lock, job };
}

/** A result of an attempt that was given up, where there is no other. */
async function completeLate(store: JobStore, job: TaskJob, lock: string, result: string): Promise<boolean> {
  const attempt = job.status.attempts.find(({ token }) => token === lock);
  if (attempt?.outcome !== 'lost' || attempt.kind === 'heartbeat') return false;
  const state = await store.state(job);
  if (state !== 'pending' && state !== 'active' && state !== 'failed') return false;
  const why = `worker ${attempt.name} came late, but with a result`;
  const status = state === 'active' ? job.ended('cancelled', why) : job.status;
  const attempts = status.attempts.map((each) =>
    each === attempt ? { ...each, outcome: 'completed' as const, error: null, ended: Date.now() } : each,
  );
  const holder = state === 'active' ? job.holder : attempt;
  if (holder === null) return false;
  if (state !== 'active' && (await store.seize(job, holder)) === null) return false;
  await store.save(job.id, {
    ...status,
    attempts,
    by: lock,
    forgiven: status.forgiven + (state === 'active' ? 0 : 1),
  });
  return store.complete(job.id, holder.token, result);
}

async function complete(
  store: JobStore,
  renewal: LockRenewal,
  token: string,
  result: string | null,
): Promise<boolean> {
  const { lock, id } = partsOf(token);
  if (lock === '') return false;
  // The usual way.
  if (result !== null && renewal.has(token) && (await store.complete(id, lock, result))) return true;
  for (let tries = 0; tries < 2; tries++) {
    const job = await store.get(id);
    if (job === null) return false;
    if (job.finished === 'completed')
      return job.completedBy === lock && (result ?? job.result) === job.result;
    const submitted = job.status.results?.[lock] ?? null;
    const given = result ?? submitted ?? '{}';
    const isOwn = job.belongsTo(lock);
    if (isOwn && (await store.complete(id, lock, given))) return true;
    // The lifetime may be over, though that isn't noted yet.
    if (tries === 0 && isOwn && (await store.endLost()) > 0) continue;
    if (await completeLate(store, job, lock, given)) return true;
    await store.release(job, lock);
    return false;
  }
  return false;
}

async function fail(store: JobStore, token: string, { error, retry }: TaskFailure): Promise<State | null> {
  const { lock, job } = await jobOf(store, token);
  if (job === null) return null;
  const status = job.ended('failed', error);
  const mayStart = retry && job.starts(true) <= job.retries;
  if (job.belongsTo(lock)) {
    const priority = TaskJob.priority(job.starts(true));
    const moved = mayStart ? store.requeue(job.id, lock, status, priority) : store.fail(job.id, lock, status);
    if (await moved) return mayStart ? 'pending' : 'failed';
  }
  return repeated(store, lock, job.id, 'failed', error);
}

async function requeue(store: JobStore, token: string, why: string, delay: number): Promise<boolean> {
  const { lock, job } = await jobOf(store, token);
  if (job === null) return false;
  const milliseconds = Math.min(Math.max(0, Math.ceil(delay)), MAX_DELAY_MS);
  if (job.belongsTo(lock)) {
    const { forgiven } = job.status;
    const more = milliseconds > 0 ? { due: Date.now() + milliseconds } : { forgiven: forgiven + 1 };
    const status = job.ended('given-back', why, more);
    const priority = TaskJob.priority(job.starts(false), true);
    if (await store.requeue(job.id, lock, status, priority, milliseconds)) return true;
  }
  return (await repeated(store, lock, job.id, 'given-back', why)) !== null;
}

/** The state of a task whose attempt has ended so before, and the answer was lost. null: it has not, and its command is gone now. */
async function repeated(
  store: JobStore,
  lock: string,
  id: string,
  outcome: string,
  error: string,
): Promise<State | null> {
  const job = await store.get(id);
  if (job === null) return null;
  const last = job.status.attempts.at(-1);
  const isLast =
    last?.token === lock && last.outcome === outcome && last.error === error && job.last === null;
  if (isLast) return store.state(job);
  await store.release(job, lock);
  return null;
}

function partsOf(token: string): { lock: string; id: string } {
  const [, lock = '', id = ''] = /^([0-9a-f]{32})\.(t-[0-9a-f]{64})$/.exec(token) ?? [];
  return { lock, id };
}
