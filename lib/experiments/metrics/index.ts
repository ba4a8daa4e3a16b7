import type { Socket } from 'node:net';
import { GPUOwnerError } from '../../errors.ts';
import { readProgress } from '../manager/index.ts';
import { type Endpoint, formatEndpoint } from '../protocol/index.ts';
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
export class Collector {
  #started = 0;
  readonly #ended = new Map<Outcome, number>(OUTCOMES.map((outcome) => [outcome, 0]));
  readonly #buckets = BOUNDS.map(() => 0);
  #seconds = 0;
  #durations = 0;
  readonly #withoutResult = new Map<string, number>();
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
    const { taker, since, outcome } = attempt;
    const { worker } = taker;
    const without = this.#withoutResult.get(worker) ?? 0;
    this.#withoutResult.set(worker, without + (lacksResult(attempt) ? 1 : 0));
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
    const durations: Sample[] = BOUNDS.map((bound, i) => ({
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
        help: 'Tasks completed over TCP without a result, by worker.',
        samples: Array.from(this.#withoutResult, ([worker, value]) => ({ labels: { worker }, value })),
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

/** A server of metrics. */
export interface MetricsServer {
  /** Where they are: http://127.0.0.1:9105/metrics */
  url: string;
  close(): void;
}

const MAX_CONNECTIONS = 100;
/** How long an answer is reused for other requests. */
const FRESH_MS = 1_000;

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

/**
 * Serves `/metrics` to Prometheus. It keeps no process alive. Anybody who can connect may ask: the families are collected once a second at
 * most, and idle connections don't keep others out.
 * @param families collects the current values
 * @throws ERR_INVALID_ARGUMENT if it can't listen there
 */
export async function serveMetrics(
  endpoint: Endpoint,
  families: () => Promise<Family[]>,
): Promise<MetricsServer> {
  let fresh: Promise<string> | null = null;
  const text = () => {
    if (fresh !== null) return fresh;
    const asked = families().then(exposition);
    fresh = asked;
    const forget = () => {
      fresh = null;
    };
    asked.then(() => setTimeout(forget, FRESH_MS).unref(), forget);
    return asked;
  };
  const connections = new Set<Socket>();
  const askers = new WeakSet<Socket>();
  const { createServer } = process.getBuiltinModule('node:http'); // takes some ms to load
  const server = createServer({ requestTimeout: 10_000, headersTimeout: 5_000 }, (request, response) => {
    askers.add(request.socket);
    const path = request.url?.split('?')[0];
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.writeHead(405, { allow: 'GET, HEAD' }).end();
    } else if (path !== '/metrics') {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('metrics are at /metrics\n');
    } else {
      text().then(
        (all) => response.writeHead(200, { 'content-type': CONTENT_TYPE }).end(all),
        (error: Error) => response.writeHead(503, { 'content-type': 'text/plain' }).end(`${error.message}\n`),
      );
    }
  });
  server.on('connection', (socket) => {
    connections.add(socket);
    socket.on('close', () => connections.delete(socket));
    if (connections.size <= MAX_CONNECTIONS) return;
    // Prometheus asks at once, so the oldest connection that has asked nothing is closed first.
    const [oldest] = connections;
    ([...connections].find((each) => !askers.has(each)) ?? oldest)?.destroy();
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) =>
      reject(
        new GPUOwnerError(
          'ERR_INVALID_ARGUMENT',
          `--metrics ${formatEndpoint(endpoint)}: can't listen there: ${error.message}; choose another port`,
          { cause: error },
        ),
      ),
    );
    server.listen({ ...endpoint }, resolve);
  });
  server.on('error', () => {});
  server.unref();
  const { port } = server.address() as { port: number };
  return {
    url: `http://${formatEndpoint({ ...endpoint, port })}/metrics`,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

/** A number, and the labels that tell it from others of its name. */
interface Sample {
  /** `_bucket`, `_sum` or `_count` of a histogram. */
  suffix?: string;
  labels: Readonly<Record<string, string>>;
  value: number;
}

/** Samples of one name. */
export interface Family {
  /** Without the suffixes of samples. */
  name: string;
  type: 'gauge' | 'counter' | 'histogram';
  help: string;
  samples: readonly Sample[];
}

const CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** Formats families as text for Prometheus, version 0.0.4 of the format. */
function exposition(families: readonly Family[]): string {
  return families
    .map(({ name, type, help, samples }) => {
      const lines = samples.map(
        ({ suffix = '', labels, value }) =>
          `${name}${suffix}${formatLabels(labels)} ${formatNumber(value)}\n`,
      );
      const explained = help.replace(/\\/g, '\\\\').replace(/\n/g, '\\n');
      return `# HELP ${name} ${explained}\n# TYPE ${name} ${type}\n${lines.join('')}`;
    })
    .join('');
}

function formatLabels(labels: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(labels).map(([key, value]) => {
    const escaped = value.replace(/\\/g, '\\\\').replace(/"/g, '\\"').replace(/\n/g, '\\n');
    return `${key}="${escaped}"`;
  });
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`;
}

function formatNumber(value: number): string {
  if (Number.isNaN(value)) return 'NaN';
  return Number.isFinite(value) ? String(value) : value > 0 ? '+Inf' : '-Inf';
}
