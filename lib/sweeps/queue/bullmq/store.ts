import { sleep } from '../../../platform/index.ts';
import { type Counts, MAX_BYTES, MAX_DELAY_MS, type State } from '../queue.ts';
import { EVENTS, isDone, type RedisConnection, serverTime } from './connection.ts';
import { removed } from './errors.ts';
import {
  type Ended,
  type Holder,
  holderText,
  type Last,
  NEVER,
  PARKED,
  resultValue,
  type Status,
  TaskJob,
} from './jobs.ts';

/** Jobs that are read at once. */
export const PAGE = 100;
/** How often other jobs than the wanted one are put back. */
const MAX_TRIES = 50;

type Waiting = 'wait' | 'prioritized' | 'delayed';
const WAITING: readonly Waiting[] = ['wait', 'prioritized', 'delayed'];

/** The jobs of a queue, and what is done to them in more than one step. Each step leaves them so that the next one can be repeated. */
export class JobStore {
  readonly connection: RedisConnection;

  /** The workers that have jobs, as last seen: BullMQ forgets that when it gives them to others. */
  #holders = new Map<string, Last>();

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

  /** Ids of jobs by where they are. Waiting jobs come in the order in which they are given out. */
  async ids(...types: ('active' | 'completed' | 'failed' | Waiting)[]): Promise<string[]> {
    return (await this.jobs.getRanges(types, 0, -1, true)).flat();
  }

  /** Ids in the order of arrival. @param state without it, of all; of others there may be some among them */
  async inOrder(state?: State): Promise<string[]> {
    const all = await this.redis.zrange(this.key('order'), '0', '-1');
    if (state === undefined) return all;
    const places = state === 'pending' || state === 'cancelled' ? WAITING : [state];
    const some = new Set(await this.ids(...places));
    return all.filter((id) => some.has(id));
  }

  async activeIds(): Promise<Set<string>> {
    return new Set(await this.ids('active'));
  }

  /** Whether no task is to be given out. @throws ERR_QUEUE where the records are gone */
  async isPaused(): Promise<boolean> {
    const [format, pause] = await this.redis.hmget(this.key('settings'), 'format', 'pause');
    if (format == null) throw removed(this.connection.address.url);
    return pause != null;
  }

  /** Jobs that wait for a time, the next one first; and how many there are for which it never comes. */
  async delayed(): Promise<{ delayed: TaskJob[]; parked: number }> {
    const ids = await this.ids('delayed');
    const delayed: TaskJob[] = [];
    for await (const job of this.read(ids)) {
      if (job === null) continue;
      if (!job.isParked) delayed.push(job);
      else if ((job.json.delay ?? 0) > MAX_DELAY_MS) break; // as all behind it
    }
    return { delayed, parked: ids.length - delayed.length };
  }

  /** Ids of jobs that can be had now, in the order in which they are given out. */
  async waitingIds(): Promise<string[]> {
    const [parked = 0] = await this.jobs.getCountsPerPriority([PARKED]);
    const ids = await this.ids('wait', 'prioritized');
    return ids.slice(0, Math.max(0, ids.length - parked)); // parked ones are the last
  }

  async counts(): Promise<Counts> {
    const types = ['active', 'completed', 'failed', 'wait', 'prioritized', 'delayed'] as const;
    // First: a delayed job that is taken meanwhile would be counted as a parked one, and its task as cancelled.
    const { parked: never } = await this.delayed();
    const [numbers, [late = 0]] = await Promise.all([
      this.jobs.getCounts([...types]),
      this.jobs.getCountsPerPriority([PARKED]),
    ]);
    const [active = 0, completed = 0, failed = 0, wait = 0, prioritized = 0, delayed = 0] = numbers;
    const pending = wait + prioritized - late + Math.max(0, delayed - never);
    return { pending, active, completed, failed, cancelled: late + Math.min(never, delayed) };
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
    return isDone(this.jobs.updateProgress(id, compact(status)));
  }

  /** Moves on the job of an attempt that ends with its task unfinished: to wait for the next start. */
  requeue(id: string, token: string, status: Status, priority: number, delay = 0): Promise<boolean> {
    const fieldsToUpdate = { priority, progress: JSON.stringify(compact(status)) };
    if (delay === 0) return isDone(this.jobs.retryJob(id, false, token, { fieldsToUpdate }));
    const skipAttempt = true;
    return isDone(this.jobs.moveToDelayed(id, Date.now(), delay, token, { skipAttempt, fieldsToUpdate }));
  }

  fail(id: string, token: string, status: Status): Promise<boolean> {
    const error = status.error ?? 'failed';
    const fields = { progress: JSON.stringify(compact(status)), stacktrace: JSON.stringify([error]) };
    return isDone(this.jobs.moveToFailed(minimal(id), error, undefined, token, false, fields));
  }

  /** Puts a job where time never comes: of a cancelled task. */
  park(id: string, token: string, status: Status, isStart: boolean): Promise<boolean> {
    const fieldsToUpdate = { priority: PARKED, progress: JSON.stringify(compact(status)) };
    const opts = { skipAttempt: !isStart, fieldsToUpdate };
    const now = Date.now();
    return isDone(this.jobs.moveToDelayed(id, now, NEVER - now, token, opts));
  }

  complete(id: string, token: string, result: string): Promise<boolean> {
    return isDone(this.jobs.moveToCompleted(minimal(id), resultValue(result), undefined, token, false));
  }

  putBack(id: string, token: string): Promise<boolean> {
    return isDone(this.jobs.moveJobFromActiveToWait(id, token));
  }

  /** The next job. */
  async next(holder: Holder): Promise<TaskJob | null> {
    const text = holderText(holder);
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

  /** Gets a job that waits, or has failed. null: another worker has it by now. */
  async seize(job: TaskJob, holder: Holder): Promise<TaskJob | null> {
    const [found = null] = await this.seizeAll([job], () => holder);
    return found;
  }

  /** @param holders called for each try */
  async seizeAll(wanted: readonly TaskJob[], holder: () => Holder): Promise<TaskJob[]> {
    const jobs = this.jobs;
    const missing = new Set(wanted.map(({ id }) => id));
    if (missing.size === 0) return [];
    await Promise.all(
      wanted.map(async ({ id, finished, json }) => {
        if (finished === 'failed') await isDone(jobs.retryFinishedJob({ id, opts: json.opts }, 'failed'));
        await isDone(jobs.promote(id)); // refused where it isn't delayed
        await isDone(jobs.changePriority(id, 1, true));
      }),
    );
    const found: TaskJob[] = [];
    for (let tries = 0; missing.size > 0 && tries < MAX_TRIES; tries++) {
      const holders = [...missing].map(holder);
      const taken = await Promise.all(holders.map((each) => this.next(each)));
      const others: [string, string][] = [];
      for (const [at, job] of taken.entries()) {
        if (job === null) continue;
        if (missing.delete(job.id)) found.push(job);
        else others.push([job.id, (holders[at] as Holder).token]);
      }
      for (const [id, token] of others.reverse()) await this.putBack(id, token);
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
    const [ids = [], unsettled = []] = await this.jobs.getRanges(['active', 'wait'], 0, -1, true);
    const known = this.#holders;
    const holders = new Map<string, Last>();
    for (const id of ids) {
      const last = known.get(id) ?? (await this.get(id))?.last;
      if (last != null) holders.set(id, last);
    }
    this.#holders = holders; // whole: another look may go on beside this one
    const stalled = ids.length === 0 ? [] : await this.jobs.moveStalledJobsToWait();
    const lost = new Set([...unsettled, ...stalled]);
    for (const id of lost) await this.#settle(id, holders.get(id));
    return lost.size;
  }

  /** @param before the worker that had it: another one may have it already */
  async #settle(id: string, before: Last | undefined): Promise<void> {
    this.#holders.delete(id);
    const job = await this.get(id);
    if (job === null || job.finished === 'completed' || job.status.stalls >= job.json.stalledCounter) return;
    const isTaken = (await this.jobs.getState(id)) === 'active';
    const isNoted = (last: Last) => job.status.attempts.some(({ token }) => token === last.token);
    const last = before !== undefined && !isNoted(before) ? before : isTaken ? null : job.last;
    if (last === null) return;
    const how =
      last.kind === 'lifetime'
        ? 'sent no message in time'
        : 'ended silently, or could not reach the queue for too long';
    const error = `worker ${last.name} (PID ${last.pid} on ${last.host}) ${how}`;
    await this.save(id, job.ended('lost', error, { stalls: job.json.stalledCounter }, last));
    if (isTaken || job.finished !== null) return;
    await isDone(this.jobs.changePriority(id, TaskJob.priority(job.starts(false))));
    if (!job.isExhausted) return;
    const holder = { ...last, token: `lost-${last.token}` };
    const again = await this.seize(job, holder);
    if (again !== null) await this.failLost(again, holder.token);
  }

  /** Fails a task that BullMQ has given us, though it has had all its starts. */
  async failLost(job: TaskJob, token: string): Promise<void> {
    const status: Status = {
      ...job.status,
      forgiven: job.status.forgiven + 1,
      stalls: job.json.stalledCounter,
    };
    await this.fail(job.id, token, { ...status, error: status.error ?? 'its workers ended silently' });
  }

  /** For how many ms the command of an attempt may still run that doesn't have the task any longer, by the clock of Redis. */
  async held({ status }: TaskJob): Promise<number> {
    return status.held === undefined ? 0 : status.held.until - (await serverTime(this.redis));
  }

  /** An attempt whose task isn't its own any longer says that its command has ended. */
  async release(job: TaskJob, token: string): Promise<void> {
    if (job.status.held?.token === token) {
      const { held: _, ...status } = job.status;
      await this.save(job.id, { ...status, due: undefined });
      if (!job.isParked) await isDone(this.jobs.promote(job.id));
      await this.notify();
    }
    if (job.retries === 0) return;
    const { attempts, retried } = job.status;
    const lost = attempts.find((each) => each.token === token);
    // The worker was cut off, and that is not the task's fault. A retry since then has forgiven all starts already.
    if (lost?.outcome !== 'lost' || lost.kind !== 'heartbeat' || lost.excused) return;
    const isForgiven = retried === undefined || lost.since > retried;
    const status: Status = {
      ...job.status,
      attempts: attempts.map((each): Ended => (each === lost ? { ...each, excused: true } : each)),
      forgiven: job.status.forgiven + (isForgiven ? 1 : 0),
    };
    await this.save(job.id, status);
    if (!isForgiven || job.finished !== 'failed' || job.status.error !== lost.error) return;
    await isDone(this.jobs.retryFinishedJob({ id: job.id, opts: job.json.opts }, 'failed'));
    await isDone(this.jobs.changePriority(job.id, TaskJob.priority(job.starts(false) - 1)));
  }

  async state(job: TaskJob): Promise<State> {
    if (job.finished !== null || job.isParked) return job.state(false);
    return job.state((await this.jobs.getState(job.id)) === 'active');
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

/** Without what says nothing. */
function compact(status: Status): Record<string, never> {
  const entries = Object.entries(status).filter(
    ([, value]) => value !== undefined && value !== 0 && !(Array.isArray(value) && value.length === 0),
  );
  return Object.fromEntries(entries) as Record<string, never>;
}
