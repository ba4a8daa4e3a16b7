// Arrays: one job with numbered parts, as `sbatch --array` has them. Each part is a job of its own. The array's process, which has no
// GPUs, starts the next ones when one begins or ends. docs/decisions/042-background-jobs.md
import { GPUOwnerError } from '../errors.ts';
import { listWords, sleep, usageError } from '../platform/index.ts';
import { arrayOf, isAhead, type JobArray } from './job-parts.ts';
import type { JobRequest } from './job-record.ts';
import { obstacleOf } from './job-request.ts';
import { formatPart, isLiving, type Job, jobAt, stateOf } from './job-state.ts';
import { JobStore } from './job-store.ts';
import { cancelBeforeStart, startPart } from './submission.ts';
import type { SweepProgress } from './sweep-progress.ts';

/** The word for a job from its first answer on: a name may be that of another job later, and a part that has not begun stays one. */
export function wordOf(asked: string, id: number | null): string {
  return asked.startsWith(`${id}_`) ? asked : String(id);
}

/** How many parts stand in the wait queue: when one begins, the next has its place already. */
const MAX_WAITING = 2;
/** How often the parts are looked at, in ms: after one has begun or ended, and when none has for long. */
const [SOON_MS, RARELY_MS] = [250, 1000];
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
  readonly #living = new Set<number>();
  readonly #isLikeSlurm: boolean;
  readonly #tell: (line: string) => void;
  /** Until the next look. */
  #pauseMs = SOON_MS;
  /** Whether a part could not start after its part of another array. */
  #isUnmet = false;

  /** @param isLikeSlurm whether parts get the variables of Slurm, too @throws ERR_INVALID_ARGUMENT if the job can't be read */
  constructor(id: number, isLikeSlurm: boolean, tell: (line: string) => void) {
    const store = JobStore.open();
    const request = store.read(id)?.request;
    const array = arrayOf(request ?? {});
    if (request === undefined || array === null)
      throw usageError(`job ${id} can't be read any longer: its file was changed or removed`);
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
      this.#pauseMs = Math.min(2 * this.#pauseMs, RARELY_MS);
      this.#startNext();
      progress.note(this.#ended.size, ids.length);
      if (this.#ended.size === ids.length) break;
      await sleep(this.#pauseMs);
    }
    return this.#summarise();
  }

  /** Starts as many parts as may wait now. */
  #startNext(): void {
    const { ids, atOnce } = this.#array;
    let { living, waiting } = this.#look();
    if (this.#store.read(this.#request.id)?.cancellation !== null) return;
    for (const index of ids) {
      if (waiting >= MAX_WAITING || living >= (atOnce ?? Number.POSITIVE_INFINITY)) break;
      if (this.#ended.has(index) || this.#living.has(index)) continue;
      const before = this.#request.after
        .filter(({ samePart }) => samePart)
        .map(({ id, isOk }) => ({ id, isOk, part: index }))
        .filter(({ id }) => arrayOf(this.#store.read(id)?.request ?? {})?.ids.includes(index));
      const why = obstacleOf(this.#store, before);
      if (why === null && before.some((each) => isAhead(this.#store, each))) continue;
      try {
        if (why === null) startPart(this.#store, this.#request, index, this.#variables(index));
        else if (cancelBeforeStart(this.#store, this.#request, index, why)) this.#isUnmet = true;
      } catch (error) {
        if (!(error instanceof GPUOwnerError) || error.code !== 'ERR_JOBS') throw error;
        this.#tell(`part ${index} waits: ${error.message}`);
        this.#pauseMs = FULL_DISK_MS;
        return;
      }
      this.#pauseMs = SOON_MS;
      ({ living, waiting } = this.#look());
    }
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
      this.#living.add(index);
      const state = (job === null ? null : stateOf(this.#store, job))?.state ?? 'lost';
      if (!isLiving(state)) this.#end(index, job, state);
      else if (state === 'waiting') waiting++;
    }
    return { living: this.#living.size, waiting };
  }

  /** @param job null: it never began */
  #end(index: number, job: number | null, state: Job['state']): void {
    this.#ended.set(index, state);
    this.#living.delete(index);
    this.#pauseMs = SOON_MS;
    if (state === 'completed') return;
    const { exitCode = null, reason = null } = job === null ? {} : jobAt(this.#store, job);
    const code = state === 'failed' && exitCode !== null ? ` with exit code ${exitCode}` : '';
    const word = state === 'failed' ? 'failed' : `was ${state}`;
    this.#tell(
      `${formatPart({ id: this.#request.id, index })} ${word}${code}${reason === null ? '' : `: ${reason}`}`,
    );
  }

  #summarise(): boolean {
    const { ids } = this.#array;
    const inState = (...states: Job['state'][]) =>
      ids.filter((index) => states.includes(this.#ended.get(index) as Job['state']));
    const failed = inState('failed', 'lost');
    this.#tell(
      `${ids.length} parts: ${inState('completed').length} completed, ${failed.length} failed, ${inState('cancelled').length} cancelled`,
    );
    if (failed.length === 0) return !this.#isUnmet;
    const named = failed.slice(0, MAX_NAMED).map((index) => formatPart({ id: this.#request.id, index }));
    const more = failed.length - named.length;
    this.#tell(
      `failed: ${listWords(more > 0 ? [...named, `${more} more`] : named)}; to run them again: gpu-owner resubmit failed`,
    );
    return false;
  }
}
