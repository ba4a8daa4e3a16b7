// What users mean by numbers, names and parts of arrays (17_3), and what they do with these.
import { now, sanitize, sleep, usageError } from '../platform/index.ts';
import type { QueueEntry } from '../shapes/index.ts';
import { cancelJob, jobsInState, noteCancellation, waitForEnd } from './job-control.ts';
import { arrayOf, formatArray, type NamedJob, numberOf, resolveNames } from './job-parts.ts';
import { type JobPart, limitOf } from './job-record.ts';
import { FAILED, LOST } from './job-request.ts';
import { formatPart, isLiving, type Job, jobAt, stateOf } from './job-state.ts';
import type { JobStore } from './job-store.ts';
import { cancelBeforeStart, resubmitJob } from './submission.ts';

const MAX_PATH_LENGTH = 1_000;

/** The word that means it. */
export function formatName(named: NamedJob): string {
  return typeof named === 'number' ? String(named) : formatPart(named);
}

/**
 * How it stands, with all that is known. A part that has not begun has the number of its array.
 * @param queue as in `JobFilter` @throws ERR_INVALID_ARGUMENT
 */
export function describeNamed(store: JobStore, named: NamedJob, queue?: readonly QueueEntry[]): Job {
  const id = numberOf(store, named);
  const listed = jobAt(store, id ?? (named as JobPart).id, queue);
  const found = store.read(listed.id as number);
  const limitMs = found === null ? null : limitOf(found);
  const job = {
    ...listed,
    directory: sanitize(found?.request.directory ?? '', MAX_PATH_LENGTH),
    limit: limitMs === null ? null : limitMs / 1_000,
  };
  if (typeof named === 'number' || id !== null) return job;
  const hasEnded = !isLiving(job.state);
  return {
    ...job,
    array: named,
    parts: null,
    state: hasEnded ? (job.state === 'lost' ? 'lost' : 'cancelled') : 'waiting',
    exitCode: null,
    reason: hasEnded ? 'its array ended before it began' : `its turn in array ${named.id} has not come`,
    pid: null,
    started: null,
    until: null,
    idle: null,
    output: null,
    progress: null,
  };
}

/** How often it is looked whether a part has begun, in ms. */
const POLL_MS = 250;

/**
 * Waits until all of them have ended.
 * @param timeout ms; null: without limit
 * @returns null: the time is up. Otherwise how they ended, in the same order
 */
export async function waitForNamed(
  store: JobStore,
  all: readonly NamedJob[],
  timeout: number | null,
): Promise<Job[] | null> {
  const end = timeout === null ? Number.POSITIVE_INFINITY : now() + timeout;
  for (const named of all) {
    let id = numberOf(store, named);
    while (typeof named !== 'number' && id === null && isLiving(stateOf(store, named.id)?.state)) {
      if (now() >= end) return null;
      await sleep(Math.min(POLL_MS, Math.max(1, end - now())));
      id = store.jobOfPart(named);
    }
    if (id !== null && !(await waitForEnd(store, id, end))) return null;
  }
  return all.map((named) => describeNamed(store, named));
}

/** Cancels it, as {@link cancelJob}; an array with all parts. */
export function cancelNamed(store: JobStore, named: NamedJob, grace: number): ReturnType<typeof cancelJob> {
  return typeof named === 'number' ? cancelWhole(store, named, grace) : cancelPart(store, named, grace);
}

/** Cancels a job, as {@link cancelJob}, and what lives of its parts. */
async function cancelWhole(store: JobStore, id: number, grace: number): ReturnType<typeof cancelJob> {
  const found = stateOf(store, id);
  if (found === null || arrayOf(found.job.request) === null) return cancelJob(store, id, grace);
  if (isLiving(found.state)) {
    // The array starts no part from now on.
    noteCancellation(store, id, { at: Date.now(), reason: null });
    await Promise.all(store.begunParts(id).map((index) => announced(store, { id, index })));
  }
  const end = async () =>
    (await Promise.all(livingParts(store, id).map((part) => cancelJob(store, part, grace)))).includes(
      'surviving',
    );
  const isLeft = await end();
  const outcome = await cancelJob(store, id, grace);
  // One may have been about to start.
  return (await end()) || isLeft ? 'surviving' : outcome;
}

/** The job of a part that begins just now; null: it has none. */
async function announced(store: JobStore, part: JobPart): Promise<number | null> {
  const end = now() + START_MS;
  for (;;) {
    const id = store.jobOfPart(part);
    if (id !== null || now() > end || !store.begunParts(part.id).includes(part.index)) return id;
    await sleep(START_POLL_MS);
  }
}

/** How long a part may take to be announced, in ms. */
const START_MS = 5_000;
const START_POLL_MS = 20;

/** Cancels a part, and waits until nothing of it runs. As {@link cancelJob}. */
async function cancelPart(store: JobStore, part: JobPart, grace: number): ReturnType<typeof cancelJob> {
  const array = stateOf(store, part.id);
  if (array !== null && isLiving(array.state) && store.jobOfPart(part) === null) {
    if (cancelBeforeStart(store, array.job.request, part.index)) return 'ended';
  }
  const id = await announced(store, part);
  return id === null ? 'not-alive' : cancelJob(store, id, grace);
}

/** The parts of an array that live. */
function livingParts(store: JobStore, id: number): number[] {
  return store
    .begunParts(id)
    .map((index) => store.jobOfPart({ id, index }))
    .filter((job) => job !== null)
    .filter((job) => isLiving(stateOf(store, job)?.state));
}

/**
 * The parts of an array that a new job is for, as `--array` takes them; null: the job is no array.
 * @param wanted those that failed or have not begun; those that neither completed nor live; none that was submitted again since
 * @returns '' if there are none
 */
function partsToResubmit(store: JobStore, id: number, wanted: 'failed' | 'lost'): string | null {
  const array = arrayOf(store.read(id)?.request ?? {});
  if (array === null) return null;
  const later = store.ids().filter((other) => other > id);
  const again = later.flatMap((other) => {
    const request = store.read(other)?.request;
    return request?.resubmits === id ? (arrayOf(request)?.ids ?? []) : [];
  });
  const isWanted = (index: number) => {
    if (again.includes(index)) return false;
    const part = store.jobOfPart({ id, index });
    const state = part === null ? undefined : stateOf(store, part)?.state;
    if (state === 'completed' || isLiving(state)) return false;
    return wanted === 'lost' || state !== 'cancelled';
  };
  const ids = array.ids.filter(isWanted);
  return ids.length === 0 ? '' : formatArray(ids, array.atOnce);
}

/**
 * Submits jobs once more, and prints their numbers.
 * @param words numbers, names and parts; `failed` and `lost` stand for all these jobs
 * @returns 0, or the exit code of one that can't be submitted @throws ERR_INVALID_ARGUMENT
 */
export async function resubmitNamed(store: JobStore, words: readonly string[]): Promise<number> {
  /** By the number of the job, the parts of an array that are meant; null: it is none. */
  const wanted = new Map<number, string | null>();
  for (const word of words) {
    if (word !== LOST && word !== FAILED) continue;
    for (const id of jobsInState(store, word)) {
      const array = partsToResubmit(store, id, word);
      if (array !== '') wanted.set(id, array);
    }
  }
  const named = resolveNames(
    store,
    words.filter((word) => word !== LOST && word !== FAILED),
  );
  const parts = new Map<number, number[]>();
  for (const each of named) {
    const part = typeof each === 'number' ? store.read(each)?.request.part : each;
    if (part === undefined) wanted.set(each as number, null);
    else if (isLiving(describeNamed(store, part).state))
      throw usageError(`job ${formatName(each)} has not ended; cancel it first`);
    else parts.set(part.id, [...(parts.get(part.id) ?? []), part.index]);
  }
  for (const [id, some] of parts) {
    const { atOnce = null } = arrayOf(store.read(id)?.request ?? {}) ?? {};
    wanted.set(
      id,
      formatArray(
        some.sort((a, b) => a - b),
        atOnce,
      ),
    );
  }
  const renumbered = new Map<number, number>();
  // In their order: those that others follow come before.
  for (const [id, array] of [...wanted].sort(([a], [b]) => a - b)) {
    const again = await resubmitJob(store, id, renumbered, array);
    if (again.exitCode !== 0) return again.exitCode;
    renumbered.set(id, again.id);
  }
  return 0;
}
