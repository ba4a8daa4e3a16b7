import type { Eta, Progress } from '../manager/index.ts';
import { type Family, type MetricsServer, serveMetrics } from '../metrics/index.ts';
import type { Project } from '../project/index.ts';
import type { Endpoint } from '../protocol/index.ts';
import type { Queue } from '../queue/index.ts';
import type { WorkerEnd } from '../worker/index.ts';
import type { ShutdownSignals } from './shutdown-signals.ts';
import type { WorkerLine } from './worker-pool.ts';

/** The current state of a run, for a display. */
export interface RunView {
  progress: Progress;
  eta: Eta;
  workers: readonly WorkerLine[];
  /** The last ones, newest first. */
  failures: readonly { name: string; error: string }[];
  /** News for people: paused, ending, who manages. */
  notes: readonly string[];
}

/** How a run ended. */
export interface RunEnd {
  progress: Progress;
  workers: readonly WorkerEnd[];
  /** Whether the tables have all rows, as far as that is this process's business. */
  inStep: boolean;
  /** The tables of results; null: somebody else writes them. */
  tables: readonly string[] | null;
  /** The exit code of a process that a signal has ended; null: no signal came. */
  interrupted: number | null;
}

/** Tells people what a controller does. */
export interface Reporter {
  /** A line that stays readable. `event`: one of many, which a live display shows as well. */
  line(text: string, kind?: 'event' | 'message'): void;
  /** Shows the state of the run; `view` is called as often as the display is drawn. */
  show(view: () => RunView): void;
  /** Reports the end, while the queue is still open. */
  conclude(end: RunEnd): Promise<void>;
}

export interface ControllerOptions {
  queue: Queue;
  project: Project;
  signals: ShutdownSignals;
  reporter: Reporter;
  /** Where metrics are served; null: nowhere. */
  metrics: Endpoint | null;
}

/** Serves metrics if that is asked for, and says where. */
export async function openMetrics(
  { metrics, reporter }: Pick<ControllerOptions, 'metrics' | 'reporter'>,
  families: () => Promise<Family[]>,
): Promise<MetricsServer | null> {
  if (metrics === null) return null;
  const server = await serveMetrics(metrics, families);
  reporter.line(`metrics: ${server.url}`);
  return server;
}
