import {
  type GPUStatus,
  listReasons,
  refuseImpossible,
  type Settings,
  sharesOf,
  type WaitingState,
} from '../../claims/index.ts';
import { GPUOwnerError, ifFailed } from '../../errors.ts';
import { hostName, listWords, showValue, usageError } from '../../platform/index.ts';
import { discover } from '../../status/index.ts';
import { describeEvent, firstLine } from '../manager/index.ts';
import { type Progress, readProgress } from '../progress/index.ts';
import type { Project } from '../project/index.ts';
import type { WorkerInfo, WorkerQueue } from '../queue/index.ts';
import { refuseTooFew, Worker, type WorkerEnd, type WorkerEvent } from '../worker/index.ts';
import type { Experiment } from './experiment.ts';

/** How a user wants workers to claim GPUs and to end. */
export interface WorkerRequest extends Omit<WorkerSettings, 'workers'> {
  /** How many GPUs in all: a number, or `all`; null: nothing was said. */
  gpus: string | null;
  /** How many workers if nothing is said; null: it must be said. */
  byDefault: number | null;
  /** How many GPUs each task of the list gets, if the user has said it. */
  gpusPerTask: number | null;
}

/** How the workers of a process claim GPUs and end. */
export interface WorkerSettings {
  /** For the claim of each worker. */
  settings: Settings;
  /** How many workers. */
  workers: number;
  /** How long tasks may take to finish after the first signal, in ms; null: no limit. */
  grace: number | null;
}

/**
 * Settings for workers of a task list. Where the user hasn't said it, workers get what its tasks need.
 * @throws as {@link countWorkers}
 */
export async function settingsFor(
  { gpus, byDefault, gpusPerTask, ...rest }: WorkerRequest,
  needed = 1,
): Promise<WorkerSettings> {
  const count = gpusPerTask ?? needed;
  const settings = { ...rest.settings, request: { ...rest.settings.request, count } };
  refuseTooFew(needed, count);
  return { ...rest, settings, workers: await countWorkers(settings, gpus, byDefault) };
}

function isClaimable({ state }: GPUStatus): boolean {
  return ['free', 'leased', 'shared', 'busy'].includes(state);
}

function countClaimable(gpus: readonly GPUStatus[]): number {
  return gpus.filter(isClaimable).length;
}

/**
 * How many workers share the GPUs that a user gives them.
 * @param settings for the claim of each worker
 * @param gpus the value of --gpus: a number, or `all`; null: nothing was said
 * @param byDefault how many workers if nothing is said; null: it must be said
 * @throws ERR_INVALID_ARGUMENT; also if the machine can never have enough GPUs
 */
async function countWorkers(
  { request }: Settings,
  gpus: string | null,
  byDefault: number | null,
): Promise<number> {
  const perTask = request.count;
  const there = await discover(request, 'claimant');
  const wanted = wantedGPUs(gpus, byDefault === null ? null : byDefault * perTask, there);
  refuseImpossible(Math.max(wanted, perTask), there, () => reasons(there));
  if (wanted % perTask !== 0 && (gpus !== 'all' || wanted < perTask)) {
    const fitting = [Math.floor(wanted / perTask), Math.ceil(wanted / perTask)].filter((each) => each > 0);
    throw usageError(
      `--gpus: ${wanted} can't be divided into tasks with ${perTask} each; use ${listWords(
        [...new Set(fitting)].map((each) => String(each * perTask)),
        'or',
      )}`,
    );
  }
  if (request.memory === undefined) return Math.floor(wanted / perTask);
  const size = request.memory;
  const places = there.filter(isClaimable).map((gpu) => sharesOf(gpu, size));
  const most = places.sort((a, b) => b - a).slice(0, wanted);
  const workers = Math.floor(most.reduce((sum, each) => sum + each, 0) / perTask);
  if (workers === 0) throw noneClaimable(there);
  return workers;
}

function noneClaimable(gpus: readonly GPUStatus[]): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_GPU_UNAVAILABLE',
    `no GPU of this machine can be claimed${listReasons(reasons(gpus))}`,
    { gpus: reasons(gpus) },
  );
}

function wantedGPUs(given: string | null, byDefault: number | null, gpus: readonly GPUStatus[]): number {
  const claimable = countClaimable(gpus);
  if (given === 'all') {
    if (claimable > 0) return claimable;
    throw noneClaimable(gpus);
  }
  if (given === null && byDefault !== null) return byDefault;
  const free = gpus.filter(({ state }) => state === 'free').length;
  const there = `${free === 0 ? 'none' : free} of ${claimable} ${free === 1 ? 'is' : 'are'} free now`;
  if (given === null) {
    throw usageError(`how many GPUs? Use --gpus ${Math.max(1, free)}, or --gpus all (${there})`);
  }
  const number = /^\d{1,4}$/.test(given) ? Number(given) : 0;
  if (number >= 1) return number;
  throw usageError(`--gpus: ${showValue(given)} is not a number of GPUs; use 1, 2, … or all (${there})`);
}

function reasons(gpus: readonly GPUStatus[]) {
  return gpus.map(({ index, instance, uuid, reason }) => ({
    index,
    instance,
    uuid,
    reason: reason ?? 'free',
  }));
}

/** Workers that a controller has started. */
export interface Pool {
  run(): Promise<readonly WorkerEnd[]>;
  drain(): void;
  stop(): void;
}

interface WorkerPoolOptions extends WorkerSettings {
  queue: WorkerQueue;
  project: Project;
  host: string;
  report: (event: WorkerEvent) => void;
}

/** The workers of a process. */
export class WorkerPool implements Pool {
  readonly #workers: Worker[] = [];
  readonly #host: string;

  constructor({ workers, report, ...options }: WorkerPoolOptions) {
    this.#host = options.host;
    const waiting = new Set<number>();
    for (let number = 1; number <= workers; number++) {
      const reportEvent = (event: WorkerEvent) => {
        report(event);
        if (event.type === 'claiming' && event.waiting !== null) {
          // A line for all that wait, and not for each change of the reasons.
          if (waiting.size === 0) report({ type: 'waiting', text: `Waiting for ${waitsFor(event.waiting)}` });
          waiting.add(number);
        } else if (event.type === 'claimed' || event.type === 'stopped') waiting.delete(number);
      };
      this.#workers.push(new Worker({ ...options, report: reportEvent }));
    }
  }

  get size(): number {
    return this.#workers.length;
  }

  /** Whether a worker, as the queue knows it, is one of these. */
  owns({ pid, host }: WorkerInfo): boolean {
    return pid === process.pid && host === this.#host;
  }

  run(): Promise<WorkerEnd[]> {
    return Promise.all(this.#workers.map((worker) => worker.run()));
  }

  drain(): void {
    for (const worker of this.#workers) worker.drain();
  }

  stop(): void {
    for (const worker of this.#workers) worker.stop();
  }
}

function waitsFor({ count, position }: WaitingState): string {
  const place = position === null ? '' : ` (position ${position} in the queue)`;
  return `${count === 1 ? 'a GPU' : `${count} GPUs`}${place}`;
}

/** Describes why workers ended before the work did: a line for each reason. */
export function describeStops(ends: readonly WorkerEnd[]): string[] {
  const counts = new Map<string, number>();
  for (const { why, message, error } of ends) {
    if (!['failures', 'environment', 'error'].includes(why)) continue;
    const text = firstLine(message ?? error?.message ?? why);
    counts.set(text, (counts.get(text) ?? 0) + 1);
  }
  return Array.from(
    counts,
    ([text, count]) => `${count === 1 ? 'a worker has' : `${count} workers have`} stopped: ${text}`,
  );
}

interface WorkersOptions extends WorkerRequest, Experiment {
  /** Tells people what happens. */
  tell: (text: string) => void;
}

/**
 * Runs `exp worker`: workers for a queue that another process manages.
 * @returns how they ended, and how the experiment stands; null: the queue can't be reached any longer
 */
export async function runWorkers({
  signals,
  tell,
  queue,
  project,
  ...request
}: WorkersOptions): Promise<{ workers: readonly WorkerEnd[]; progress: Progress | null }> {
  const settings = await settingsFor(request, await queue.gpusPerTask());
  const report = (event: WorkerEvent) => {
    const text = describeEvent(event);
    if (text !== null) tell(text);
  };
  const pool = new WorkerPool({ ...settings, queue, project, host: hostName(), report });
  signals.forwardTo(pool, tell);
  const workers = await pool.run();
  for (const text of describeStops(workers)) tell(text);
  return { workers, progress: await readProgress(queue).catch(ifFailed(null)) };
}
