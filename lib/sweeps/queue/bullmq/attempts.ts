import { stringifyValue } from '../../task/index.ts';
import { type Attempt, MAX_DELAY_MS, type Queue, type WorkerInfo } from '../queue.ts';
import { type Ended, type Holder, newToken, TaskJob } from './jobs.ts';
import type { LockRenewal } from './lock-renewal.ts';
import type { JobStore } from './store.ts';

/** Jobs that are looked at for one that can be started. */
const MAX_TRIES = 1_000;

/** The methods of a queue that begin and end attempts. */
export function attemptMethods(
  store: JobStore,
  renewal: LockRenewal,
): Pick<Queue, 'take' | 'endLost' | 'setLog' | 'complete' | 'fail' | 'requeue'> {
  return {
    take: (worker, { lifetime } = {}) => take(store, renewal, worker, lifetime),

    async endLost() {
      await store.check();
      await store.endLost();
    },

    async setLog(token, log) {
      await store.redis.hset(store.key('logs'), partsOf(token).lock, JSON.stringify(log));
      await store.notify();
    },

    async complete(token, result) {
      const isOwn = await complete(store, token, stringifyValue(result ?? {}));
      renewal.remove(token);
      return isOwn;
    },

    async fail(token, { error, retry }) {
      const ended = await end(store, token, 'failed', error, (job, lock) => {
        const starts = job.starts(true);
        const status = job.ended('failed', error);
        if (!retry || starts > job.retries) return store.fail(job.id, lock, status, error);
        return store.requeue(job.id, lock, status, TaskJob.priority(starts));
      });
      renewal.remove(token);
      return ended && store.state(ended);
    },

    async requeue(token, why, delay = 0) {
      const milliseconds = Math.min(Math.max(0, Math.ceil(delay)), MAX_DELAY_MS);
      const ended = await end(store, token, 'given-back', why, (job, lock) => {
        // A delayed job doesn't count for BullMQ.
        const forgiven = job.status.forgiven + (milliseconds > 0 ? 0 : 1);
        const priority = TaskJob.priority(job.starts(false), true);
        return store.requeue(
          job.id,
          lock,
          job.ended('given-back', why, { forgiven }),
          priority,
          milliseconds,
        );
      });
      renewal.remove(token);
      return ended !== null;
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
    const holder: Holder = { ...worker, token: newToken() };
    const asked = renewal.time;
    const job = (await store.isPaused()) ? null : await store.next(holder);
    if (job === null) {
      if (hasLooked || (await store.endLost()) === 0) return null;
      hasLooked = true;
    } else if (await mayStart(store, job, holder.token)) {
      const { token: lock } = holder;
      const token = `${lock}.${job.id}`;
      const attempt = {
        token,
        task: job.task(),
        start: job.starts(true),
        descriptors: [],
        isOnce: job.retries === 0,
      };
      await store.save(job.id, { ...job.status, current: job.last });
      if (lifetime !== undefined) await store.jobs.extendLock(job.id, lock, Math.ceil(lifetime));
      return { ...attempt, ...renewal.add(token, lifetime !== undefined, asked) };
    }
  }
  return null;
}

/** Whether the job that BullMQ has given can be started now; otherwise puts it where it belongs. */
async function mayStart(store: JobStore, job: TaskJob, token: string): Promise<boolean> {
  await store.noteLost(job);
  const wait = await store.held(job);
  if (wait > 0) await store.requeue(job.id, token, job.status, TaskJob.priority(job.starts(false)), wait);
  else if (job.isExhausted) await store.failLost(job, token);
  else return true;
  return false;
}

async function complete(store: JobStore, token: string, result: string): Promise<boolean> {
  const { lock, id } = partsOf(token);
  if (lock === '') return false;
  if (await store.complete(id, lock, result)) return true;
  const job = await store.get(id);
  if (job === null) return false;
  if (job.finished === 'completed') return job.last?.token === lock && result === job.result; // the answer was lost
  // The lifetime may be over, though that isn't noted yet.
  if (job.belongsTo(lock)) await store.endLost();
  await store.release(job, lock);
  return false;
}

/** Ends an attempt with its task unfinished. @returns the task after that; null: rejected */
async function end(
  store: JobStore,
  token: string,
  outcome: Ended['outcome'],
  error: string,
  move: (job: TaskJob, lock: string) => Promise<boolean>,
): Promise<TaskJob | null> {
  const { lock, id } = partsOf(token);
  const job = lock === '' ? null : await store.get(id);
  if (job === null) return null;
  if (job.belongsTo(lock) && (await move(job, lock))) return store.get(id);
  // It may have ended so before, and the answer was lost.
  const again = await store.get(id);
  const last = again?.status.attempts.at(-1);
  const isRepeated = last?.token === lock && last.outcome === outcome && last.error === error;
  if (isRepeated && again?.last === null) return again;
  await store.release(job, lock);
  return null;
}

function partsOf(token: string): { lock: string; id: string } {
  const [, lock = '', id = ''] = /^([0-9a-f]{32})\.(t-[0-9a-f]{64})$/.exec(token) ?? [];
  return { lock, id };
}
