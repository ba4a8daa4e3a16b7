// Waiting for jobs, and ending them. Only processes are signalled that have the job's own byte locked.

import { closeSync } from 'node:fs';
import { ifPossible } from '../errors.ts';
import { errno, native, OFD, SHARED } from '../native.ts';
import { now, ownersOf, sleep, timerMs } from '../platform/index.ts';
import {
  isAlive,
  isSameFile,
  type JobCancellation,
  type StoredJob,
  signalJob,
  writeBlock,
} from './job-record.ts';
import { EX_KILLED, EX_TERMINATED, isWaiting, type Job, stateOf } from './job-state.ts';
import type { JobStore } from './job-store.ts';
import { notifyOfCancelled } from './notification.ts';

/** The keeper ends the job for it, and so does its front. As in native/keeper/signals.h. */
const CANCEL = 63; // SIGRTMAX - 1
const SIGTERM = 15;
const SIGKILL = 9;
const SIGCONT = 18;
/** The reason of a job's end where it has left. */
export const MOVED = 'moved to another machine';
const POLL_MS = 50;
const REPEAT_MS = 500;
/** After the grace, for the kernel and the keeper, in ms. */
const SETTLE_MS = 5_000;

/**
 * Ends a job: SIGTERM to all its processes, after the grace SIGKILL.
 * @param grace ms, up to an hour @param moved it starts on another machine
 * @returns ended: it has; not-alive: it had ended before; surviving: something can't be ended
 */
export async function cancelJob(
  store: JobStore,
  id: number,
  grace: number,
  moved = false,
): Promise<'ended' | 'not-alive' | 'surviving'> {
  const found = stateOf(store, id);
  if (found === null || !isAlive(found.job)) return 'not-alive';
  noteCancellation(store, id, { at: Date.now(), reason: moved ? MOVED : null, moved });
  const end = Date.now() + grace + SETTLE_MS;
  let next = 0;
  for (let job: StoredJob | null = found.job; job !== null && isAlive(job); job = store.read(id)) {
    const time = Date.now();
    if (time >= end) return 'surviving';
    if (time >= next) {
      signalAll(job, time >= end - SETTLE_MS, grace);
      next = time + REPEAT_MS;
    }
    await sleep(POLL_MS);
  }
  if (!moved) notifyOfCancelled(store, id);
  return 'ended';
}

/** Where its file can't be written to any longer, it ends all the same. */
export function noteCancellation(store: JobStore, id: number, cancellation: JobCancellation): void {
  const file = ifPossible(() => store.openFile(id), null);
  if (file === null) return;
  writeBlock(file, 'cancellation', cancellation);
  closeSync(file);
}

function signalAll(job: StoredJob, isLast: boolean, grace: number): void {
  const { lock } = job.request;
  const known = [job.end?.keeper, job.end?.front, job.progress?.pid];
  const isReached = known.some((pid) => signalJob(pid, lock, CANCEL, grace) === 0);
  // No keeper has said yet that it is there: it may be Node.js that waits, which does nothing for the other one.
  if (job.end === null || isWaiting(job)) signalJob(job.progress?.pid, lock, isLast ? SIGKILL : SIGTERM);
  // One that is suspended gets it only when it goes on.
  for (const pid of known) signalJob(pid, lock, SIGCONT);
  if (isReached) return;
  // Keeper and front were killed: what is left of the command has the lock.
  for (const pid of [job.end?.pid, ...lockOwners(lock)]) {
    signalJob(pid, lock, isLast ? SIGKILL : SIGTERM);
    signalJob(pid, lock, SIGCONT);
  }
}

function lockOwners({ path, byte }: StoredJob['request']['lock']): number[] {
  const descriptor = native().fileOpenForProbe(path);
  if (descriptor < 0) return [];
  try {
    return ownersOf(descriptor, byte).map(({ pid }) => pid);
  } finally {
    native().fileClose(descriptor);
  }
}

/** Waits until a job has ended. @param end on the clock of `now()` @returns false: the time is up */
export async function waitForEnd(store: JobStore, id: number, end: number): Promise<boolean> {
  for (let job = store.read(id); job !== null && isAlive(job); job = store.read(id)) {
    if (now() >= end) return false;
    await nextLook(job, end);
  }
  return true;
}

/** The exit code of a job that has ended. One that has none: as if SIGTERM, or SIGKILL, had ended it. */
export function exitCodeOfEnd({ exitCode, state }: Pick<Job, 'exitCode' | 'state'>): number {
  return exitCode ?? (state === 'lost' ? EX_KILLED : EX_TERMINATED);
}

/** Resolves when the job's byte is unlocked, or it is time to look again. */
async function nextLook({ request: { lock } }: StoredJob, end: number): Promise<void> {
  const descriptor = native().fileOpenForProbe(lock.path);
  await new Promise<void>((resolve) => {
    const cancels: (() => void)[] = [];
    const finish = () => {
      for (const cancel of cancels.splice(0)) cancel();
      resolve();
    };
    let longest = end - now();
    if (descriptor < 0 || !isSameFile(descriptor, lock)) longest = Math.min(longest, REPEAT_MS);
    else {
      const wait = new (native().Wait)(descriptor, OFD, SHARED, lock.byte, 1, (error) => {
        if (error === 0) return finish();
        if (error === errno.ECANCELED) return;
        const timer = setTimeout(finish, REPEAT_MS); // no thread can be had to wait with
        cancels.push(() => clearTimeout(timer));
      });
      cancels.push(() => wait.cancel());
    }
    if (Number.isFinite(longest)) {
      const timer = setTimeout(finish, timerMs(longest));
      cancels.push(() => clearTimeout(timer));
    }
  }).finally(() => descriptor >= 0 && native().fileClose(descriptor));
}

/** Jobs that were lost, or have failed, and weren't submitted again since; an array stands for its parts. */
export function jobsInState(store: JobStore, wanted: 'lost' | 'failed'): number[] {
  const found = store.ids().map((id) => ({ id, ...stateOf(store, id) }));
  const again = new Set(found.map(({ job }) => job?.request.resubmits));
  return found
    .filter(({ id, state, job }) => {
      const isPart = job?.request.part !== undefined;
      // Some parts of an array may have been submitted again, and others not.
      return state === wanted && !isPart && (!again.has(id) || job?.request.array !== undefined);
    })
    .map(({ id }) => id);
}
