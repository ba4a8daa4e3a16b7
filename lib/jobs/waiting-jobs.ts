// Changes to one's own jobs while they wait.
import { LockDirectory, putFirst } from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { readActivity } from '../status/index.ts';
import { type JobRequest, signalJob } from './job-record.ts';
import { stateOf } from './job-state.ts';
import type { JobStore } from './job-store.ts';

const SIGCONT = 18;
const SIGSTOP = 19;

/** Suspends a job that waits: the queue skips it until it is resumed, and its place stays. @throws ERR_JOBS if it doesn't wait */
export function pauseJob(store: JobStore, id: number): void {
  const { pid, lock } = waitingProcess(store, id);
  if (signalJob(pid, lock, SIGSTOP) !== 0) throw notWaiting(id);
  // The job may have been given its GPUs just before.
  const holds = readActivity(undefined).leases.some(({ info }) => info.job === id && info.pid === pid);
  if (!holds && stateOf(store, id)?.state === 'waiting') return;
  signalJob(pid, lock, SIGCONT);
  throw notWaiting(id);
}

/** @throws ERR_JOBS if it doesn't wait */
export function resumeJob(store: JobStore, id: number): void {
  const { pid, lock } = waitingProcess(store, id);
  if (signalJob(pid, lock, SIGCONT) !== 0) throw notWaiting(id);
}

/** Puts waiting jobs before this user's other requests, in the given order. @throws ERR_JOBS if one isn't in the wait queue */
export function putJobsFirst(store: JobStore, ids: readonly number[]): void {
  const pids = ids.map((id) => waitingProcess(store, id).pid);
  const directory = LockDirectory.find(undefined, loadConfiguration());
  const isMeant = ids.map(
    (id, i) =>
      ({ info }: { info: { job?: number; pid: number | null } }) =>
        info.job === id && info.pid === pids[i],
  );
  const found = directory === null ? [] : putFirst(directory, isMeant);
  const missing = ids.find((_, i) => found[i] !== true);
  if (missing !== undefined)
    throw new GPUOwnerError(
      'ERR_JOBS',
      `job ${missing} is not in the wait queue yet; \`gpu-owner jobs ${missing}\` says what it waits for.`,
    );
}

/** The process of a job that waits, and the byte that it has locked. @throws ERR_JOBS if it doesn't wait */
function waitingProcess(store: JobStore, id: number): { pid: number; lock: JobRequest['lock'] } {
  const found = stateOf(store, id);
  const pid = found?.job.progress?.pid;
  if (found?.state !== 'waiting' || pid === undefined) throw notWaiting(id);
  return { pid, lock: found.job.request.lock };
}

function notWaiting(id: number): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_JOBS',
    `job ${id} doesn't wait; \`gpu-owner jobs ${id}\` says how it stands.`,
  );
}
