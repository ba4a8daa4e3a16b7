import type { Settings, WaitingState } from '../../claims/index.ts';
import { hostName } from '../../platform/index.ts';
import { describeEvent, firstLine, type Progress, readProgress } from '../manager/index.ts';
import { Collector, openMetrics } from '../metrics/index.ts';
import type { Project } from '../project/index.ts';
import type { Endpoint } from '../protocol/index.ts';
import type { Queue } from '../queue/index.ts';
import { Worker, type WorkerEnd, type WorkerEvent } from '../worker/index.ts';
import type { Experiment, WorkerLine } from './experiment.ts';

/** How the workers of a process claim GPUs and end. */
export interface WorkerSettings {
  /** For the claim of each worker. */
  settings: Settings;
  /** How many workers. */
  workers: number;
  /** How long tasks may take to finish after the first signal, in ms; null: no limit. */
  grace: number | null;
  /** Whether somebody watches a display. */
  watched: boolean;
}

interface WorkerPoolOptions extends WorkerSettings {
  queue: Queue;
  project: Project;
  host: string;
  /** Writes a line to the log. */
  record: (text: string) => void;
  /** Called when a task has failed. */
  onFailure?: (name: string, error: string) => void;
  /** Counts what the workers do. */
  collector: Collector;
}

const DOING: Record<string, string> = {
  paused: 'idle: paused',
  delayed: 'idle: the next task is delayed',
  active: 'idle: other workers run the last tasks',
};

/** The workers of a process. */
export class WorkerPool {
  readonly #workers: { worker: Worker; line: WorkerLine }[] = [];

  constructor({ workers, record, onFailure, collector, ...options }: WorkerPoolOptions) {
    for (let number = 1; number <= workers; number++) {
      const unnamed = workers === 1 ? 'worker' : `worker ${number}`;
      const slot = {
        line: { worker: unnamed, doing: 'starts', since: Date.now() } as WorkerLine,
        worker: new Worker({
          ...options,
          report: (event) => {
            collector.event(event);
            slot.line = lineAfter(event, slot.line, unnamed);
            const text = describeEvent(event);
            if (text !== null) record(text);
            if (event.type === 'failed') onFailure?.(event.task.name, firstLine(event.error));
          },
        }),
      };
      this.#workers.push(slot);
    }
  }

  get lines(): WorkerLine[] {
    return this.#workers.map(({ line }) => line);
  }

  run(): Promise<WorkerEnd[]> {
    return Promise.all(this.#workers.map(({ worker }) => worker.run()));
  }

  drain(): void {
    for (const { worker } of this.#workers) worker.drain();
  }

  stop(): void {
    for (const { worker } of this.#workers) worker.stop();
  }
}

function lineAfter(event: WorkerEvent, before: WorkerLine, unnamed: string): WorkerLine {
  const since = Date.now();
  switch (event.type) {
    case 'assigned':
      return { worker: event.worker, doing: event.task.name, since };
    case 'claiming':
      // A wait lasts from its first event on.
      return {
        worker: unnamed,
        doing: `waits for ${waitsFor(event.waiting)}`,
        since: before.doing.startsWith('waits for') ? before.since : since,
      };
    case 'claimed':
      return { worker: event.worker, doing: 'takes a task', since: null };
    case 'idle':
      return { worker: event.worker ?? unnamed, doing: DOING[event.why] ?? 'idle', since };
    case 'completed':
    case 'failed':
    case 'given-back':
    case 'revoked':
      return { worker: event.worker, doing: 'takes a task', since: null };
    case 'released':
      return event.why === 'idle' ? { ...before, worker: unnamed } : before;
    case 'stopped':
      return { worker: event.worker ?? before.worker, doing: `ended: ${endText(event.end)}`, since: null };
    default:
      return before;
  }
}

function waitsFor(state: WaitingState | null): string {
  if (state === null) return 'a GPU';
  const { count, position } = state;
  const place = position === null ? '' : ` (position ${position} in the queue)`;
  return `${count === 1 ? 'a GPU' : `${count} GPUs`}${place}`;
}

/** Describes why workers ended before the work did: a line for each reason. */
export function describeStops(ends: readonly WorkerEnd[]): string[] {
  const counts = new Map<string, number>();
  for (const end of ends) {
    if (!['failures', 'environment', 'error'].includes(end.why)) continue;
    const text = endText(end);
    counts.set(text, (counts.get(text) ?? 0) + 1);
  }
  return Array.from(
    counts,
    ([text, count]) => `${count === 1 ? 'a worker has' : `${count} workers have`} stopped: ${text}`,
  );
}

/** Names the reason why a worker has ended, in a few words. */
function endText({ why, message, error }: WorkerEnd): string {
  switch (why) {
    case 'finished':
      return 'no task is left';
    case 'drained':
    case 'stopped':
      return 'on request';
    default:
      return firstLine(message ?? error?.message ?? why);
  }
}

interface WorkersOptions extends WorkerSettings, Experiment {
  /** Where metrics are served; null: nowhere. */
  metrics: Endpoint | null;
  /** Tells people what happens. */
  tell: (text: string) => void;
}

/**
 * Runs `exp worker`: workers for a queue that somebody else manages.
 * @returns how they ended, and how the experiment stands; null: the queue can't be reached any longer
 */
export async function runWorkers({
  signals,
  metrics,
  tell,
  ...options
}: WorkersOptions): Promise<{ workers: readonly WorkerEnd[]; progress: Progress | null }> {
  const collector = new Collector();
  const server = await openMetrics(metrics, async () => collector.families(), tell);
  const pool = new WorkerPool({ ...options, host: hostName(), record: tell, collector });
  signals.forwardTo(pool, tell);
  try {
    const workers = await pool.run();
    for (const text of describeStops(workers)) tell(text);
    return { workers, progress: await readProgress(options.queue).catch(() => null) };
  } finally {
    server?.close();
  }
}
