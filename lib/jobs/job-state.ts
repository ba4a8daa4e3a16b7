// How jobs stand, and which job a word means.
import type { GPUOwnerError } from '../errors.ts';
import { findUid, isoTime, sanitize, showValue, usageError, userName } from '../platform/index.ts';
import type { Job, QueueEntry } from '../shapes/index.ts';
import { type Activity, readActivity, type WaitingRequest } from '../status/index.ts';
import { isAlive, type JobPart, OpenLocks, type StoredJob } from './job-record.ts';
import { JobStore } from './job-store.ts';

export type { Job } from '../shapes/index.ts';

/** A job's own state, without what the locks of the machine tell. @param since see {@link JobStore.read} @param opened see {@link isAlive} */
export function stateOf(
  store: JobStore,
  id: number,
  since?: number,
  opened?: OpenLocks,
): { job: StoredJob; state: Job['state'] } | null {
  const before = store.read(id, since);
  if (before === null) return null;
  // The end is written before the lock goes: of a thousand that have ended, none need be asked for it.
  const isEnded = before.progress?.failure !== undefined || before.end?.ended != null;
  if (isEnded) return { job: before, state: endState(before) };
  if (isAlive(before, opened)) {
    return { job: before, state: isWaiting(before) ? 'waiting' : 'running' };
  }
  // The job may have ended since it was read.
  const job = store.read(id) ?? before;
  return { job, state: endState(job) };
}

/** Exit codes of a command that SIGTERM or SIGKILL has ended. */
export const EX_TERMINATED = 143;
export const EX_KILLED = 137;

function endState({ progress, end, cancellation }: StoredJob): Job['state'] {
  if (progress?.failure !== undefined) return progress.failure.isCancelled ? 'cancelled' : 'failed';
  const isOver = end !== null && end.ended !== null;
  // The job may have ended by itself before it was cancelled. A SIGTERM that was for the process before its keeper ends the command
  // without the keeper's knowledge.
  if (cancellation !== null) {
    const wasSignalled = isOver && [null, EX_TERMINATED, EX_KILLED].includes(end.exitCode);
    if (!isOver || end.cancelled === true || (wasSignalled && Number(end.ended) >= cancellation.at))
      return 'cancelled';
  }
  if (!isOver || end.exitCode === null) return 'lost';
  return end.exitCode === 0 ? 'completed' : 'failed';
}

/** Whether a job that is alive waits: it has never started, or was preempted. */
export function isWaiting({ progress, end }: StoredJob): boolean {
  return end === null ? progress?.started === undefined : end.requeued !== null;
}

/** The exit code that a job that has ended is worth; null: unknown. */
export function exitCodeOf({ progress, end }: StoredJob): number | null {
  return progress?.failure?.exitCode ?? end?.exitCode ?? null;
}

/** The jobs that are meant. */
interface JobFilter {
  /** Another user's name or uid, whose background jobs can only be seen as far as locks tell; null: this one. */
  user: string | null;
  /** Also those that ended longer ago than {@link RECENT_MS}, and ended parts of arrays. */
  all: boolean;
  lockDirectory: string | undefined;
  /** The wait queue, which says more of why jobs wait than their locks do. */
  queue?: readonly QueueEntry[];
}

/** How long an ended job is listed without being asked for, in ms. */
const RECENT_MS = 86_400_000;

/** Jobs in the order of their submission, and then `run`s that were not submitted. */
export function listJobs({ user, all, lockDirectory, queue }: JobFilter): Job[] {
  const activity = readActivity(lockDirectory, queue);
  const own = process.geteuid?.() ?? 0;
  const uid = user === null ? own : findUid(user);
  const holders = [...activity.leases, ...activity.waiting];
  // A user of a container, or of another machine, is known by the name in a record only.
  if (uid === null && !holders.some(({ info }) => info.user === user)) {
    throw usageError(
      `there is no user ${showValue(user)} on this machine: give a name or a uid, as \`id\` prints them`,
    );
  }
  const isWanted = (holder: { user: string; uid: number | null }) =>
    uid === null || holder.uid === null ? holder.user === user : holder.uid === uid;
  const jobs: Job[] = [];
  const known = new Set<number>();
  if (uid === own) {
    const store = JobStore.open();
    const since = all ? undefined : Date.now() - RECENT_MS;
    const opened = new OpenLocks();
    const holderOf = lookUp(activity);
    try {
      for (const id of store.ids()) {
        known.add(id);
        const found = stateOf(store, id, since, opened);
        if (found === null) continue;
        const ended = endOf(found.job);
        const isRecent = ended === null || (since !== undefined && ended > since);
        const isEndedPart = found.job.request.part !== undefined && !isLiving(found.state);
        if (all || (isRecent && !isEndedPart)) jobs.push(listedJob(found, holderOf));
      }
    } finally {
      opened.close();
    }
  }
  const others = holders.filter(({ info }) => isWanted(info) && !(info.job != null && known.has(info.job)));
  return [...jobs, ...others.map(describeRun)];
}

/** A job by its number. @param queue as in {@link JobFilter} @throws ERR_INVALID_ARGUMENT */
export function jobAt(store: JobStore, id: number, queue?: readonly QueueEntry[]): Job {
  const found = stateOf(store, id);
  if (found === null) throw unknownJob(id);
  return listedJob(found, isLiving(found.state) ? lookUp(readActivity(undefined, queue)) : NO_HOLDER);
}

/** A job whose end is known: something that it has left may have its lock still. null: there is none, or its end isn't known. */
export function endedJob(store: JobStore, id: number): Job | null {
  const job = store.read(id);
  if (job === null) return null;
  const isKnown = job.progress?.failure !== undefined || typeof job.end?.ended === 'number';
  return isKnown || !isAlive(job) ? listedJob({ job, state: endState(job) }, NO_HOLDER) : null;
}

const MAX_REASON_LENGTH = 1_000;
const SUSPENDED = 'suspended: it keeps its GPUs; `fg`, or kill -CONT, continues it';

/** What locks tell of a job: its request, or its lease. */
interface HolderLookup {
  waiterOf: (id: number, pid: number | undefined) => WaitingRequest | undefined;
  leaseOf: (id: number) => Activity['leases'][number] | undefined;
}

const NO_HOLDER: HolderLookup = { waiterOf: () => undefined, leaseOf: () => undefined };

/** Where several claim to be the same job's, the first counts. */
function lookUp({ leases, waiting }: Activity): HolderLookup {
  const own = leases.filter(({ info }) => info.uid === process.geteuid?.()).reverse();
  const byJob = new Map(own.map((each) => [each.info.job, each]));
  const byProcess = new Map(waiting.toReversed().map((each) => [`${each.info.job} ${each.info.pid}`, each]));
  return { leaseOf: (id) => byJob.get(id), waiterOf: (id, pid) => byProcess.get(`${id} ${pid}`) };
}

/** When it ended, in ms since 1970; null: unknown, or it hasn't. A job that is lost counts as ended when it was submitted or started. */
function endOf({ progress, end, cancellation, request }: StoredJob): number | null {
  return progress?.failure?.ended ?? end?.ended ?? cancellation?.at ?? progress?.started ?? request.submitted;
}

function listedJob(
  { job, state }: { job: StoredJob; state: Job['state'] },
  { waiterOf, leaseOf }: HolderLookup,
): Job {
  const { request, progress, cancellation } = job;
  const isOver = !isLiving(state);
  const waiter = state === 'waiting' ? waiterOf(request.id, progress?.pid) : undefined;
  const holder = leaseOf(request.id);
  const time = (ms: number | null | undefined) => (typeof ms === 'number' ? isoTime(ms) : null);
  const { done, total } = progress ?? {};
  return {
    id: request.id,
    name: sanitizeOptional(request.name),
    state,
    exitCode: isOver ? exitCodeOf(job) : null,
    reason: isOver
      ? sanitizeOptional(progress?.failure?.message ?? cancellation?.reason)
      : state === 'waiting'
        ? waiter === undefined
          ? sanitize(progress?.reason ?? 'starting', MAX_REASON_LENGTH)
          : listReasons(waiter.why, sanitizeOptional(progress?.hidden))
        : holder?.info.suspended
          ? SUSPENDED
          : null,
    position: waiter?.position ?? null,
    count: request.count,
    gpus: state === 'waiting' ? [] : (progress?.gpus ?? []).map(({ parent: _, ...gpu }) => gpu),
    command: sanitize(request.command, MAX_REASON_LENGTH),
    note: sanitizeOptional(request.note),
    user: userName(process.geteuid?.() ?? 0),
    pid: isOver ? null : (progress?.pid ?? null),
    submitted: time(request.submitted),
    started: time(progress?.started),
    ended: isOver ? time(state === 'lost' ? null : endOf(job)) : null,
    until: state === 'running' ? time(untilOf(job)) : null,
    idle: state === 'running' ? (holder?.idle ?? null) : null,
    after: request.after.map(({ id }) => id),
    output: request.output,
    preempted: job.end?.preempted ?? 0,
    retried: job.end?.failures ?? 0,
    ran: Math.round((job.end?.ran ?? 0) / 1_000),
    array: request.part ?? null,
    parts: sanitizeOptional(request.array),
    progress: typeof done === 'number' && typeof total === 'number' ? { done, total } : null,
    ...(cancellation?.moved && { moved: true }),
  };
}

/** When its limit ends it, in ms since 1970; null: never, or its keeper hasn't begun. */
function untilOf({ progress, end }: StoredJob): number | null {
  return progress?.started !== undefined && end?.limit != null ? progress.started + end.limit : null;
}

/** A file has it, to which others may have written. */
function sanitizeOptional(text: string | null | undefined): string | null {
  return text == null ? null : sanitize(text, MAX_REASON_LENGTH);
}

/** What isn't known of a job that has no files here. */
export const UNKNOWN = {
  ...{ exitCode: null, submitted: null, started: null, ended: null, until: null, idle: null, note: null },
  ...{ after: [], output: null, array: null, parts: null, progress: null, preempted: 0, retried: 0, ran: 0 },
} satisfies Partial<Job>;

function describeRun(each: Activity['leases'][number] | WaitingRequest): Job {
  const { info } = each;
  const waits = 'position' in each;
  return {
    ...UNKNOWN,
    id: null,
    name: info.name ?? null,
    state: waits ? 'waiting' : 'running',
    reason: waits ? each.why : each.info.suspended ? SUSPENDED : null,
    position: waits ? each.position : null,
    count: waits ? each.count : each.gpus.length,
    gpus: waits ? [] : each.gpus,
    command: info.command ?? 'unknown',
    note: info.note ?? null,
    user: info.user,
    pid: info.pid,
    started: waits ? null : info.since,
    until: waits ? null : (each.info.until ?? null),
    idle: waits ? null : each.idle,
  };
}

function listReasons(...reasons: (string | null)[]): string {
  return reasons.filter((reason) => reason !== null).join('; ');
}

/** The word that means a part of an array: 17_3. */
export function formatPart({ id, index }: JobPart): string {
  return `${id}_${index}`;
}

/** Whether a job has not ended. undefined: there is none */
export function isLiving(state: Job['state'] | undefined): boolean {
  return state === 'waiting' || state === 'running';
}

/** @param word for people: a number, or a name */
export function unknownJob(word: string | number): GPUOwnerError {
  return usageError(
    `you have no job ${sanitize(String(word), 60)} on this machine; \`gpu-owner jobs --all\` lists those that you have`,
  );
}
