import { sleep } from '../../../platform/index.ts';
import { type Counts, MAX_BYTES, NO_PID, type State } from '../queue.ts';
import { EVENTS, isDone, type RedisConnection, serverTime } from './connection.ts';
import { removed } from './errors.ts';
import { type Holder, type Places, type Status, TaskJob } from './jobs.ts';

/** Jobs that are read at once. */
export const PAGE = 100;
/** How often other jobs than the wanted one are put back. */
const MAX_TRIES = 50;

type Place = 'active' | 'completed' | 'failed' | 'wait' | 'prioritized' | 'delayed';
const PLACES: Readonly<Record<State, readonly Place[]>> = {
  pending: ['wait', 'prioritized', 'delayed'],
  active: ['active'],
  completed: ['completed'],
  failed: ['failed'],
  cancelled: ['failed'],
};

/** The jobs of a queue, and what is done to them in more than one step. Each step leaves them so that the next one can be repeated. */
export class JobStore {
  readonly connection: RedisConnection;

  constructor(connection: RedisConnection) {
    this.connection = connection;
  }

  get jobs(): RedisConnection['jobs'] {
    return this.connection.jobs;
  }

  get redis(): RedisConnection['redis'] {
    return this.connection.redis;
  }

  key(name: string): string {
    return this.connection.key(name);
  }

  /** null: there is none. */
  async get(id: string): Promise<TaskJob | null> {
    if (!isId(id)) return null;
    const json = await this.jobs.getJobData(id);
    return json === undefined ? null : new TaskJob(id, json);
  }

  /** As many of them as have no more than MAX_BYTES together; one at least. null: there is no such job. */
  async *read(ids: readonly string[]): AsyncGenerator<TaskJob | null> {
    for (let from = 0, page = 8; from < ids.length; ) {
      const jobs = await Promise.all(ids.slice(from, from + page).map((id) => this.get(id)));
      yield* jobs;
      from += page;
      const size = jobs.reduce((sum, job) => sum + (job === null ? 0 : sizeOf(job)), 0);
      page = size < MAX_BYTES / 4 ? Math.min(2 * page, 256) : Math.max(1, page >> 1);
    }
  }

  /** Ids of jobs by where they are. */
  async ids(...places: readonly Place[]): Promise<string[]> {
    return (await this.jobs.getRanges([...places], 0, -1, true)).flat();
  }

  /** Ids in the order of arrival. @param state without it, of all; of others there may be some among them */
  async inOrder(state?: State): Promise<string[]> {
    const all = await this.redis.zrange(this.key('order'), '0', '-1');
    if (state === undefined) return all;
    const some = new Set(await this.ids(...PLACES[state]));
    return all.filter((id) => some.has(id));
  }

  async places(): Promise<Places> {
    const [active, cancelled] = await Promise.all([
      this.ids('active'),
      this.redis.smembers(this.key('cancelled')),
    ]);
    return { active: new Set(active), cancelled: new Set(cancelled) };
  }

  /** Whether no task is to be given out. @throws ERR_QUEUE where the records are gone */
  async isPaused(): Promise<boolean> {
    const [format, pause] = await this.redis.hmget(this.key('settings'), 'format', 'pause');
    if (format == null) throw removed(this.connection.address.url);
    return pause != null;
  }

  /** When the first delayed job comes, in ms since the epoch; null: none is delayed, or another can be had now. */
  async nextTime(): Promise<number | null> {
    const waiting = await this.jobs.getCounts(['wait', 'prioritized']);
    if (waiting.some((count) => count > 0)) return null;
    const { delayed } = this.connection.backend.keys;
    const [, score] = await this.redis.zrange(delayed as string, '0', '0', 'WITHSCORES');
    const time = Math.floor(Number(score ?? 0) / 2 ** 12); // as BullMQ counts
    return time <= Date.now() ? null : time;
  }

  async counts(): Promise<Counts> {
    const [numbers, cancelled] = await Promise.all([
      this.jobs.getCounts(['active', 'completed', 'failed', 'wait', 'prioritized', 'delayed']),
      this.redis.scard(this.key('cancelled')),
    ]);
    const [active = 0, completed = 0, failed = 0, ...pending] = numbers;
    return {
      pending: pending.reduce((sum, count) => sum + count, 0),
      ...{ active, completed, failed: Math.max(0, failed - cancelled), cancelled },
    };
  }

  /** @throws ERR_QUEUE where the records are gone */
  async check(): Promise<void> {
    await this.isPaused();
  }

  /** Tells those who wait for changes of one that BullMQ doesn't tell itself. */
  async notify(): Promise<void> {
    await this.jobs.publishEvent({ event: 'changed' }, EVENTS);
  }

  async save(id: string, status: Status): Promise<boolean> {
    return isDone(this.jobs.updateProgress(id, { ...status }));
  }

  /** Moves on the job of an attempt that ends with its task unfinished: to wait for the next start. */
  requeue(id: string, token: string, status: Status, priority: number, delay = 0): Promise<boolean> {
    const fieldsToUpdate = { priority, progress: JSON.stringify(status) };
    if (delay === 0) return isDone(this.jobs.retryJob(id, false, token, { fieldsToUpdate }));
    const skipAttempt = true;
    return isDone(this.jobs.moveToDelayed(id, Date.now(), delay, token, { skipAttempt, fieldsToUpdate }));
  }

  fail(id: string, token: string, status: Status, reason: string): Promise<boolean> {
    const fields = { progress: JSON.stringify(status), stacktrace: JSON.stringify([reason]) };
    return isDone(this.jobs.moveToFailed(minimal(id), reason, undefined, token, false, fields));
  }

  complete(id: string, token: string, result: string): Promise<boolean> {
    return isDone(this.jobs.moveToCompleted(minimal(id), result, undefined, token, false));
  }

  /** The next job. */
  async next(holder: Holder): Promise<TaskJob | null> {
    const text = JSON.stringify(holder);
    const { connection } = this;
    return connection.perform(async (_, again) => {
      // The answer was lost, and perhaps it was a job.
      const had = again ? await this.#heldBy(holder.token) : null;
      if (had !== null) return had;
      const [json, id] = await connection.backend.moveToActive(holder.token, text);
      return json ? new TaskJob(id as string, json) : null;
    });
  }

  /** The job that an attempt has, though it may not have heard that. */
  async #heldBy(token: string): Promise<TaskJob | null> {
    for await (const job of this.read(await this.ids('active'))) if (job?.holder?.token === token) return job;
    return null;
  }

  /** Gets jobs that wait, or have failed; others have some of them by now. @param newToken called for each try */
  async seizeAll(wanted: readonly TaskJob[], newToken: () => string): Promise<TaskJob[]> {
    const jobs = this.jobs;
    const missing = new Set(wanted.map(({ id }) => id));
    const found: TaskJob[] = [];
    await Promise.all(
      wanted.map(async ({ id, finished, json }) => {
        if (finished === 'failed') {
          await isDone(jobs.retryFinishedJob({ id, opts: json.opts }, 'failed'));
          await this.redis.srem(this.key('cancelled'), id);
        }
        await isDone(jobs.promote(id)); // refused where it isn't delayed
        await isDone(jobs.changePriority(id, 1, true));
      }),
    );
    for (let tries = 0; missing.size > 0 && tries < MAX_TRIES; tries++) {
      const tokens = [...missing].map(newToken);
      const taken = await Promise.all(
        tokens.map((token) => this.next({ name: '', host: '', pid: NO_PID, gpus: [], token })),
      );
      const others: [string, string][] = [];
      for (const [at, job] of taken.entries()) {
        if (job === null) continue;
        if (missing.delete(job.id)) found.push(job);
        else others.push([job.id, tokens[at] as string]);
      }
      for (const [id, token] of others.reverse()) await isDone(jobs.moveJobFromActiveToWait(id, token));
      if (taken.includes(null)) break;
    }
    return found;
  }

  /** Ends attempts that are known to be lost. @returns how many there were */
  async endLost(): Promise<number> {
    // BullMQ notes who has a job, and next time looks whether they still have it.
    const first = await this.look();
    await sleep(2);
    return first + (await this.look());
  }

  /** One of two looks. @returns how many were lost */
  async look(): Promise<number> {
    // BullMQ puts them there, and only them: a process may have ended before it noted what they were.
    const unsettled = await this.ids('wait');
    const lost = new Set([...unsettled, ...(await this.jobs.moveStalledJobsToWait())]);
    for (const id of lost) await this.#settle(id);
    return lost.size;
  }

  async #settle(id: string): Promise<void> {
    const job = await this.get(id);
    if (job === null || job.finished !== null || (await this.state(job)) === 'active') return; // its worker notes it
    if (!(await this.noteLost(job))) return;
    await isDone(this.jobs.changePriority(id, TaskJob.priority(job.starts(false))));
    if (!job.isExhausted) return;
    const token = `lost-${id}`;
    const [again] = await this.seizeAll([job], () => token);
    if (again !== undefined) await this.failLost(again, token);
  }

  /** Notes an attempt that BullMQ has found to be lost. @returns whether there was one */
  async noteLost(job: TaskJob): Promise<boolean> {
    const { stalledCounter: stalls } = job.json;
    if (stalls <= job.status.stalls) return false;
    const last = job.lost;
    const who = last === null ? 'its worker' : `worker ${last.name} (PID ${last.pid} on ${last.host})`;
    const error = `${who} ended silently, or sent no message in time`;
    // One that ended before it had begun doesn't count.
    const forgiven = job.status.forgiven + (last === null ? 1 : 0);
    Object.assign(job.status, job.ended('lost', error, { stalls, forgiven }, last));
    await this.save(job.id, job.status);
    return true;
  }

  /** Fails a task that BullMQ has given us, though it has had all its starts. */
  async failLost(job: TaskJob, token: string): Promise<void> {
    const { status } = job;
    const error = status.error ?? 'its workers ended silently';
    await this.fail(job.id, token, { ...status, error, forgiven: status.forgiven + 1 }, error);
  }

  /** For how many ms the command of an attempt may still run that doesn't have the task any longer, by the clock of Redis. */
  async held({ status }: TaskJob): Promise<number> {
    return status.held === null ? 0 : status.held.until - (await serverTime(this.redis));
  }

  /** An attempt whose task isn't its own any longer says that its command has ended. */
  async release({ id, status }: TaskJob, token: string): Promise<void> {
    if (status.held?.token !== token) return;
    await this.save(id, { ...status, held: null });
    await isDone(this.jobs.promote(id));
    await this.notify();
  }

  async state(job: TaskJob): Promise<State> {
    if (job.finished === null) return (await this.jobs.getState(job.id)) === 'active' ? 'active' : 'pending';
    return job.state({ active: new Set(), cancelled: (await this.places()).cancelled });
  }
}

export function isId(text: string): boolean {
  return /^t-[0-9a-f]{64}$/.test(text);
}

function minimal(id: string) {
  return { id, opts: { attempts: Number.MAX_SAFE_INTEGER } };
}

export function sizeOf({ json }: TaskJob): number {
  return json.data.length + (json.returnvalue?.length ?? 0) + JSON.stringify(json.progress).length + 200;
}
