// Arrays: one job with numbered parts, as `sbatch --array` has them. Each part is a job of its own. The array's process, which has no
// GPUs, starts the next ones when one begins or ends. docs/decisions/042-background-jobs.md
import { type FSWatcher, watch } from 'node:fs';
import { join } from 'node:path';
import { GPUOwnerError, ifPossible } from '../errors.ts';
import { invalidArgument, listWords, now, showValue, sleep } from '../platform/index.ts';
import { cancelJob, noteCancellation, waitForJobs } from './job-control.ts';
import type { JobPart, JobRequest } from './job-record.ts';
import { formatPart, isLiving, type Job, jobAt, parsePart, stateOf } from './job-state.ts';
import { JobStore } from './job-store.ts';
import { cancelBeforeStart, startPart } from './submission.ts';
import type { SweepProgress } from './sweep-progress.ts';

/** The parts of an array. */
interface JobArray {
  /** In ascending order. */
  ids: readonly number[];
  /** How many may run at the same time; null: as many as get GPUs. */
  atOnce: number | null;
}

const MAX_PARTS = 1_000;
const EXAMPLE = 'use 0-99, 0-99:2, 1,3,7, and %4 after it for four at a time';

/** Reads `0-99`, `0-99:2`, `1,3,7-9`, with `%4` after it. @throws ERR_INVALID_ARGUMENT */
export function parseArray(text: string): JobArray {
  const refuse = (why: string) => invalidArgument(`--array: ${showValue(text)} ${why}; ${EXAMPLE}`);
  const [, list = '', limit] = /^([^%]*)(?:%(\d{1,9}))?$/.exec(text) ?? [];
  if (limit !== undefined && Number(limit) === 0) throw refuse('would run none at a time');
  const ids = new Set<number>();
  for (const range of list.split(',')) {
    const [, first, last = first, step = '1'] =
      /^\s*(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\s*$/.exec(range) ?? [];
    if (first === undefined) throw refuse('is not a list of numbers and ranges');
    if (Number(last) < Number(first)) throw refuse(`has ${first}-${last}, which ends before it begins`);
    if (Number(step) === 0) throw refuse('has the step 0');
    for (let id = Number(first); id <= Number(last); id += Number(step)) {
      if (ids.add(id).size > MAX_PARTS)
        throw invalidArgument(
          `--array: ${showValue(text)} has more than ${MAX_PARTS.toLocaleString('en')} parts; \`gpu-owner exp run --grid\` runs more`,
        );
    }
  }
  return { ids: [...ids].sort((a, b) => a - b), atOnce: limit === undefined ? null : Number(limit) };
}

/** Some parts of an array, as `--array` takes them: `1,3,7-9%4`. */
export function formatArray(ids: readonly number[], atOnce: number | null): string {
  const ranges: [number, number][] = [];
  for (const id of ids) {
    const last = ranges.at(-1);
    if (last !== undefined && last[1] === id - 1) last[1] = id;
    else ranges.push([id, id]);
  }
  const text = ranges.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(',');
  return atOnce === null ? text : `${text}%${atOnce}`;
}

/** The parts of a job. null: it is no array, or its file has been changed. */
export function arrayOf({ array }: Pick<JobRequest, 'array'>): JobArray | null {
  return ifPossible(() => (array === undefined ? null : parseArray(array)), null);
}

/** The part that a word means, such as 17_3; null: the word means a job. @throws ERR_INVALID_ARGUMENT for a part that the array doesn't have */
export function partOf(store: JobStore, word: string): JobPart | null {
  const part = parsePart(word);
  const request = part === null ? undefined : store.read(part.id)?.request;
  if (part === null || request === undefined) return null;
  const array = arrayOf(request);
  if (array === null) throw invalidArgument(`job ${part.id} is no array, so it has no part ${part.index}`);
  if (array.ids.includes(part.index)) return part;
  throw invalidArgument(`job ${part.id} has no part ${part.index}; its parts are ${request.array}`);
}

/** The word for a job from its first answer on: a name may be that of another job later, and a part that has not begun stays one. */
export function wordOf(asked: string, id: number | null): string {
  return asked.startsWith(`${id}_`) ? asked : String(id);
}

/** How a part stands. One that has not begun has the number of its array. @throws ERR_INVALID_ARGUMENT */
export function describePart(store: JobStore, part: JobPart, lockDirectory?: string): Job {
  const id = store.jobOfPart(part);
  if (id !== null) return jobAt(store, id, lockDirectory);
  const array = jobAt(store, part.id, lockDirectory);
  const hasEnded = !isLiving(array.state);
  return {
    ...array,
    array: part,
    parts: null,
    state: hasEnded ? (array.state === 'lost' ? 'lost' : 'cancelled') : 'waiting',
    exitCode: null,
    reason: hasEnded ? 'its array ended before it began' : `its turn in array ${part.id} has not come`,
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

/** Waits until a part has ended. @param timeout ms; null: without limit @returns null: the time is up */
export async function waitForPart(
  store: JobStore,
  part: JobPart,
  timeout: number | null,
): Promise<Job | null> {
  const end = timeout === null ? Number.POSITIVE_INFINITY : now() + timeout;
  while (store.jobOfPart(part) === null && isLiving(stateOf(store, part.id)?.state)) {
    if (now() >= end) return null;
    await sleep(Math.min(POLL_MS, Math.max(1, end - now())));
  }
  const id = store.jobOfPart(part);
  if (id === null) return describePart(store, part);
  const ended = await waitForJobs(store, [id], timeout === null ? null : Math.max(0, end - now()));
  return ended?.[0] ?? null;
}

/** Cancels a job, as {@link cancelJob}, and what lives of its parts. */
export async function cancelWhole(store: JobStore, id: number, grace: number): ReturnType<typeof cancelJob> {
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
export async function cancelPart(
  store: JobStore,
  part: JobPart,
  grace: number,
): ReturnType<typeof cancelJob> {
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
export function partsToResubmit(store: JobStore, id: number, wanted: 'failed' | 'lost'): string | null {
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

/** How many parts stand in the wait queue: when one begins, the next has its place already. */
const MAX_WAITING = 2;
/** How often the parts are looked at without a change of their files: kill -9 changes none. In ms. */
const LOOK_MS = 2_000;
/** The same where their files can't be watched, in ms. */
const UNWATCHED_LOOK_MS = 250;
/** Before a part is started that couldn't be kept, in ms. */
const FULL_DISK_MS = 10_000;
const MAX_NAMED = 10;

/** Runs the parts of an array: its controller. */
export class ArrayRun {
  readonly #store: JobStore;
  readonly #request: JobRequest;
  readonly #array: JobArray;
  /** By the number of the part. */
  readonly #ended = new Map<number, Job['state']>();
  /** The living parts' files, by the number of the part. */
  readonly #watchers = new Map<number, FSWatcher | null>();
  readonly #isLikeSlurm: boolean;
  readonly #tell: (line: string) => void;
  #wake = () => {};

  /** @param isLikeSlurm whether parts get the variables of Slurm, too @throws ERR_INVALID_ARGUMENT if the job can't be read */
  constructor(id: number, isLikeSlurm: boolean, tell: (line: string) => void) {
    const store = JobStore.open();
    const request = store.read(id)?.request;
    const array = arrayOf(request ?? {});
    if (request === undefined || array === null)
      throw invalidArgument(`job ${id} can't be read any longer: its file was changed or removed`);
    this.#store = store;
    this.#request = request;
    this.#array = array;
    this.#isLikeSlurm = isLikeSlurm;
    this.#tell = tell;
  }

  /**
   * Resolves when all parts have ended.
   * @returns whether none failed
   * @throws ERR_INVALID_ARGUMENT if no part can be started any more
   */
  async run(progress: Pick<SweepProgress, 'note'>): Promise<boolean> {
    const { ids } = this.#array;
    for (;;) {
      const pauseMs = this.#startNext() ? LOOK_MS : FULL_DISK_MS;
      progress.note(this.#ended.size, ids.length);
      if (this.#ended.size === ids.length) break;
      const isUnwatched = [...this.#watchers.values()].includes(null);
      await this.#change(isUnwatched ? UNWATCHED_LOOK_MS : pauseMs);
    }
    return this.#summarise();
  }

  /** Starts as many parts as may wait now. @returns false: the disk is full */
  #startNext(): boolean {
    const { ids, atOnce } = this.#array;
    let { living, waiting } = this.#look();
    if (this.#store.read(this.#request.id)?.cancellation !== null) return true;
    for (const index of ids) {
      if (waiting >= MAX_WAITING || living >= (atOnce ?? Number.POSITIVE_INFINITY)) break;
      if (this.#ended.has(index) || this.#watchers.has(index)) continue;
      try {
        startPart(this.#store, this.#request, index, this.#variables(index));
      } catch (error) {
        if (!(error instanceof GPUOwnerError) || error.code !== 'ERR_JOBS') throw error;
        this.#tell(`part ${index} waits: ${error.message}`);
        return false;
      }
      ({ living, waiting } = this.#look());
    }
    return true;
  }

  /** Variables of the environment of a part. */
  #variables(index: number): Record<string, number> {
    const own = { GPU_OWNER_ARRAY_ID: index };
    if (!this.#isLikeSlurm) return own;
    const { ids } = this.#array;
    const [first = 0, second = first + 1] = ids;
    return {
      ...own,
      SLURM_ARRAY_JOB_ID: this.#request.id,
      SLURM_ARRAY_TASK_ID: index,
      SLURM_ARRAY_TASK_COUNT: ids.length,
      SLURM_ARRAY_TASK_MIN: first,
      SLURM_ARRAY_TASK_MAX: ids.at(-1) ?? first,
      SLURM_ARRAY_TASK_STEP: second - first,
    };
  }

  #look(): { living: number; waiting: number } {
    let waiting = 0;
    for (const index of this.#store.begunParts(this.#request.id)) {
      if (this.#ended.has(index) || !this.#array.ids.includes(index)) continue;
      const job = this.#store.jobOfPart({ id: this.#request.id, index });
      if (!this.#watchers.has(index)) this.#watchers.set(index, job === null ? null : this.#watch(job));
      const state = (job === null ? null : stateOf(this.#store, job))?.state ?? 'lost';
      if (!isLiving(state)) this.#end(index, job, state);
      else if (state === 'waiting') waiting++;
    }
    return { living: this.#watchers.size, waiting };
  }

  /** @param job null: it never began */
  #end(index: number, job: number | null, state: Job['state']): void {
    this.#ended.set(index, state);
    this.#watchers.get(index)?.close();
    this.#watchers.delete(index);
    if (state === 'completed') return;
    const { exitCode = null, reason = null } = job === null ? {} : jobAt(this.#store, job);
    const code = state === 'failed' && exitCode !== null ? ` with exit code ${exitCode}` : '';
    const word = state === 'failed' ? 'failed' : `was ${state}`;
    this.#tell(
      `${formatPart({ id: this.#request.id, index })} ${word}${code}${reason === null ? '' : `: ${reason}`}`,
    );
  }

  /** null: its file can't be watched */
  #watch(id: number): FSWatcher | null {
    return ifPossible(() => {
      const watcher = watch(join(this.#store.directoryOf(id), 'job'), () => this.#wake());
      return watcher.on('error', () => watcher.close());
    }, null);
  }

  /** Resolves when the file of a part has changed, or the time is up. */
  async #change(timeoutMs: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, timeoutMs);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = () => {};
  }

  #summarise(): boolean {
    const { ids } = this.#array;
    const inState = (...states: Job['state'][]) =>
      ids.filter((index) => states.includes(this.#ended.get(index) as Job['state']));
    const failed = inState('failed', 'lost');
    this.#tell(
      `${ids.length} parts: ${inState('completed').length} completed, ${failed.length} failed, ${inState('cancelled').length} cancelled`,
    );
    if (failed.length === 0) return true;
    const named = failed.slice(0, MAX_NAMED).map((index) => formatPart({ id: this.#request.id, index }));
    const more = failed.length - named.length;
    this.#tell(
      `failed: ${listWords(more > 0 ? [...named, `${more} more`] : named)}; to run them again: gpu-owner resubmit failed`,
    );
    return false;
  }
}
