import type { Settings } from '../../claims/index.ts';
import type { Queue } from '../queue/index.ts';
import type { WorkerEvent } from './events.ts';

export interface WorkerOptions {
  queue: Queue;
  /** Commands run in `directory`; `state` is for the worker's own files. Both absolute. `host`: names of logs begin with it. */
  project: { directory: string; state: string; host?: string };
  /** Which GPUs, and how many for each task. */
  settings: Settings;
  /** How long the current task may take to finish once the worker drains, in ms; null (default): as long as it takes. */
  grace?: number | null;
  /** The name of this machine, for others. Default: its own. */
  host?: string;
  /** Told of everything that happens. Must not throw. */
  report?: (event: WorkerEvent) => void;
  /** Between SIGTERM and SIGKILL when a command must end, in ms. Default: 10 s. */
  endingGrace?: number;
  /** After how long without work it lets its GPUs go, in ms. Default: 30 s. */
  idleLimit?: number;
  /** Whether more tasks may still come into the queue: then an empty one isn't the end. */
  expecting?: () => boolean;
  /** Somebody looks on: tell every few seconds how things stand while it waits for GPUs. */
  watched?: boolean;
}
