import type { Endpoint } from '../../platform/index.ts';
import { type Family, type MetricSample, type MetricsServer, serveMetrics } from '../../prometheus/index.ts';
import { readProgress } from '../manager/index.ts';
import { type AttemptInfo, lacksResult, type Queue, STATES } from '../queue/index.ts';
import type { WorkerEvent } from '../worker/index.ts';

type Outcome = NonNullable<AttemptInfo['outcome']>;

const OUTCOMES: readonly Outcome[] = ['completed', 'failed', 'given-back', 'lost', 'cancelled'];
/** Upper bounds of the duration histogram, in s: from a second to a day. */
const BOUNDS = [1, 10, 60, 300, 900, 3_600, 7_200, 14_400, 43_200, 86_400];

/**
 * Counts events of the workers of this process, and of workers that ask it for tasks. Counters begin at 0 with the process, as Prometheus
 * expects.
 */
export class MetricsCollector {
  #started = 0;
  readonly #ended = new Map<Outcome, number>(OUTCOMES.map((outcome) => [outcome, 0]));
  readonly #buckets = BOUNDS.map(() => 0);
  #seconds = 0;
  #durations = 0;
  /** By host and worker: workers of the original on all machines have the same names. */
  readonly #withoutResult = new Map<string, MetricSample>();
  /** Workers that hold GPUs or ask for tasks, and when their task began, in ms since the epoch. */
  readonly #workers = new Map<string, { since: number | null }>();

  event(event: WorkerEvent, now = Date.now()): void {
    switch (event.type) {
      case 'claimed':
        this.#workers.set(event.worker, { since: null });
        break;
      case 'assigned':
        this.#begin(event.worker, now);
        break;
      case 'completed':
      case 'failed':
        this.#end(event.worker, event.type, event.seconds);
        break;
      case 'given-back':
        this.#end(event.worker, 'given-back', null);
        break;
      case 'revoked':
        this.#end(event.worker, 'cancelled', null);
        break;
      case 'released':
        this.#workers.delete(event.worker);
        break;
    }
  }

  /** Counts an attempt of a worker that asked this process for its task. */
  attempt(attempt: AttemptInfo, now = Date.now()): void {
    const { since, outcome } = attempt;
    const worker = attempt.worker.name;
    const { host } = attempt.worker;
    const without = this.#withoutResult.get(`${host} ${worker}`)?.value ?? 0;
    const value = without + (lacksResult(attempt) ? 1 : 0);
    this.#withoutResult.set(`${host} ${worker}`, { labels: { worker, host }, value });
    if (outcome === null) this.#begin(worker, since);
    else {
      const timed = outcome === 'completed' || outcome === 'failed';
      this.#end(worker, outcome, timed ? (now - since) / 1_000 : null);
    }
  }

  #begin(worker: string, since: number): void {
    this.#started++;
    this.#workers.set(worker, { since });
  }

  #end(worker: string, outcome: Outcome, seconds: number | null): void {
    this.#ended.set(outcome, (this.#ended.get(outcome) ?? 0) + 1);
    this.#workers.set(worker, { since: null });
    if (seconds === null) return;
    this.#seconds += seconds;
    this.#durations++;
    BOUNDS.forEach((bound, i) => {
      if (seconds <= bound) this.#buckets[i] = (this.#buckets[i] as number) + 1;
    });
  }

  families(): Family[] {
    const durations: MetricSample[] = BOUNDS.map((bound, i) => ({
      suffix: '_bucket',
      labels: { le: String(bound) },
      value: this.#buckets[i] as number,
    }));
    durations.push(
      { suffix: '_bucket', labels: { le: '+Inf' }, value: this.#durations },
      { suffix: '_sum', labels: {}, value: this.#seconds },
      { suffix: '_count', labels: {}, value: this.#durations },
    );
    const workers = [...this.#workers];
    return [
      {
        name: 'gpu_owner_tasks_started_total',
        type: 'counter',
        help: 'Attempts started by workers of this process, or given to workers over TCP.',
        samples: [{ labels: {}, value: this.#started }],
      },
      {
        name: 'gpu_owner_tasks_ended_total',
        type: 'counter',
        help: 'Attempts that have ended, by outcome.',
        samples: Array.from(this.#ended, ([outcome, value]) => ({ labels: { outcome }, value })),
      },
      {
        name: 'gpu_owner_tasks_without_result_total',
        type: 'counter',
        help: 'Tasks completed over TCP without a result, by worker and its host.',
        samples: [...this.#withoutResult.values()],
      },
      {
        name: 'gpu_owner_task_duration_seconds',
        type: 'histogram',
        help: 'Duration of attempts that were completed or failed.',
        samples: durations,
      },
      {
        name: 'gpu_owner_worker_busy',
        type: 'gauge',
        help: 'Whether a worker runs a task (1) or has none (0).',
        samples: workers.map(([worker, { since }]) => ({
          labels: { worker },
          value: since === null ? 0 : 1,
        })),
      },
      {
        name: 'gpu_owner_worker_task_start_time_seconds',
        type: 'gauge',
        help: "When the worker's current task was started, since the epoch.",
        samples: workers.flatMap(([worker, { since }]) =>
          since === null ? [] : [{ labels: { worker }, value: since / 1_000 }],
        ),
      },
    ];
  }
}

/** Families about the queue itself. @param manages whether this process writes the tables of results */
export async function queueFamilies(queue: Queue, manages: boolean): Promise<Family[]> {
  const { counts, running, pause } = await readProgress(queue);
  const single = (name: string, help: string, value: number): Family => ({
    name,
    type: 'gauge',
    help,
    samples: [{ labels: {}, value }],
  });
  return [
    {
      name: 'gpu_owner_tasks',
      type: 'gauge',
      help: 'Tasks of the queue, by state.',
      samples: STATES.map((state) => ({ labels: { state }, value: counts[state] })),
    },
    single('gpu_owner_attempts_running', 'Attempts that run now.', running.length),
    {
      name: 'gpu_owner_paused',
      type: 'gauge',
      help: 'Whether the experiment is paused (1), and by whom.',
      samples: (['person', 'failures'] as const).map((by) => ({
        labels: { by },
        value: pause?.by === by ? 1 : 0,
      })),
    },
    single('gpu_owner_manages', 'Whether this process writes the tables of results (1).', manages ? 1 : 0),
  ];
}

/** Serves metrics if that is asked for, and tells where. @param endpoint null: nowhere */
export async function openMetrics(
  endpoint: Endpoint | null,
  families: () => Promise<Family[]>,
  tell: (text: string) => void,
): Promise<MetricsServer | null> {
  if (endpoint === null) return null;
  const server = await serveMetrics(endpoint, families);
  tell(`metrics: ${server.url}`);
  return server;
}
