import { GPUOwnerError } from '../../errors.ts';
import { commandProblem, type SweepProgress } from '../../jobs/index.ts';
import { formatDuration, now, sleep, usageError } from '../../platform/index.ts';
import { noSweep, type Sweep } from '../files/index.ts';
import { type Best, type Eta, type Progress, type Tally, tallyOf } from '../progress/index.ts';
import { openProject, type Project } from '../project/index.ts';
import {
  type ExperimentLocation,
  isOnServer,
  noExperiment,
  openQueue,
  type Queue,
  type TaskRow,
  whereText,
} from '../queue/index.ts';
import type { WorkerEnd } from '../worker/index.ts';
import { ShutdownSignals } from './shutdown-signals.ts';

/** @throws as `openProject` */
function openProjectOf({ directory, url }: ExperimentLocation): Project {
  return openProject(directory, { isOnServer: url !== null && isOnServer(url) });
}

/**
 * Opens the queue and the project of an experiment, and closes them when `use` has ended.
 * @param sweep what is to be run; null: what the queue has
 * @param options create: makes the queue if there is none; mayBeDone: a queue without work will do; isBackground: no second
 * signal can come from a terminal, so the first one counts as two
 * @throws ERR_INVALID_ARGUMENT if there is nothing to do
 */
export async function withExperiment<T>(
  location: ExperimentLocation,
  sweep: Sweep | null,
  {
    create,
    mayBeDone,
    isBackground = false,
  }: { create: boolean; mayBeDone: boolean; isBackground?: boolean },
  use: (experiment: Experiment) => Promise<T>,
): Promise<T> {
  const { directory, url } = location;
  refuseOtherRuntimes();
  leaveToOwner();
  const queue = await openQueue(url, directory, { create, takesPart: true });
  if (queue === null) throw sweep?.commandless ?? noSweep(directory);
  const project = openProjectOf(location);
  const signals = new ShutdownSignals(isBackground);
  try {
    const { active, pending, completed } = await queue.counts();
    if (sweep === null && !mayBeDone && active + pending + completed === 0) throw noSweep(directory);
    return await use({ queue, project, signals });
  } finally {
    await queue.close();
    signals.close();
  }
}

/** In Bun, workers start no task, and a sweep would wait for ever. @throws ERR_UNSUPPORTED_PLATFORM */
function refuseOtherRuntimes(): void {
  const { bun } = process.versions;
  if (bun === undefined) return;
  throw new GPUOwnerError(
    'ERR_UNSUPPORTED_PLATFORM',
    `sweeps need Node.js, and this is Bun ${bun}: set GPU_OWNER_NODE to the path of a Node.js, or leave out --bun.`,
  );
}

/** Whatever the umask takes from others: the owner of new files can use them, or the experiment could never go on. */
export function leaveToOwner(): void {
  process.umask(process.umask() & 0o077);
}

/** How often a list without tasks is looked at. */
const TASKS_INTERVAL_MS = 500;

interface Joining {
  /** How long a task list that doesn't exist yet, or has no tasks yet, may take to get some, in ms. */
  waitMs: number;
  /** Tells people that it waits. */
  tell: (text: string) => void;
}

/**
 * Opens the queue and the project of an experiment for workers, and closes them when `use` has ended. Waits for its tasks: workers may be
 * started before `exp run`.
 * @returns the exit code: what `use` answers, or that of a signal which has ended the wait
 * @throws ERR_QUEUE if there is no experiment in time
 */
export async function joinExperiment(
  location: ExperimentLocation,
  joining: Joining,
  use: (experiment: Experiment) => Promise<number>,
): Promise<number> {
  refuseOtherRuntimes();
  leaveToOwner();
  const signals = new ShutdownSignals();
  let queue: Queue | null = null;
  try {
    queue = await queueWithTasks(location, joining, signals.drain);
    if (queue !== null) return await use({ queue, project: openProjectOf(location), signals });
    if (signals.exitCode !== null) return signals.exitCode;
    throw noExperiment(location);
  } finally {
    await queue?.close();
    signals.close();
  }
}

/**
 * Waits for a queue with tasks, and opens it again for each look: the list that comes may be another project's, and is refused then.
 * @returns one without tasks if they don't come in time; null: there is no queue, or the signal came first
 */
async function queueWithTasks(
  location: ExperimentLocation,
  { waitMs, tell }: Joining,
  signal: AbortSignal,
): Promise<Queue | null> {
  const { directory, url } = location;
  const end = now() + waitMs;
  for (let isFirst = true; ; isFirst = false) {
    const queue = await openQueue(url, directory, { create: false, takesPart: true });
    const left = end - now();
    try {
      if (queue !== null && (left <= 0 || tallyOf(await queue.counts()).total > 0)) return queue;
    } catch (error) {
      await queue?.close();
      throw error;
    }
    await queue?.close();
    if (signal.aborted || left <= 0) return null;
    if (isFirst) {
      const missing = queue === null ? 'there is no task list yet' : 'the task list has no tasks yet';
      tell(
        `${missing} (${whereText(location)}): waiting up to ${formatDuration(waitMs)} for gpu-owner exp run or exp manager`,
      );
    }
    await sleep(Math.min(left, TASKS_INTERVAL_MS), signal);
  }
}

/**
 * Refuses a sweep that can start none of its commands: nothing of it is in the queue then, where a corrected command would be another.
 * @throws ERR_INVALID_ARGUMENT
 */
export function checkPrograms(sweep: Sweep, directory: string): void {
  const missing = new Map<string, string>();
  for (const { command } of sweep.samples()) {
    const program = 'words' in command ? command.words[0] : undefined;
    if (program === undefined) return;
    if (missing.has(program)) continue;
    const problem = commandProblem([program], directory);
    if (problem === null) return;
    missing.set(program, problem.message);
  }
  const [message] = missing.values();
  if (message !== undefined) throw usageError(message);
}

/** The current state of a run, for a display. */
export interface RunView {
  /** The state of the tasks that were asked for. */
  progress: Progress;
  eta: Eta;
  /** The best trial of the search; null: there is none, or it compares nothing. */
  best: Best | null;
  /** The last ones, newest first. */
  failures: readonly { name: string; error: string }[];
  /** News for people: paused, ending, who manages. */
  notes: readonly string[];
}

/** How a run ended. */
export interface RunEnd {
  /** The state of the tasks that were asked for. */
  progress: Progress;
  /** Other tasks that the queue has. */
  others: Tally;
  best: Best | null;
  workers: readonly WorkerEnd[];
  /** Why workers ended before the work did, in lines. */
  stops: readonly string[];
  /** Whether the tables have all rows, as far as that is this process's business. */
  tablesComplete: boolean;
  /** The tables of results; null: another process writes them. */
  tables: readonly string[] | null;
  /** The exit code of a process that a signal has ended; null: no signal came. */
  interrupted: number | null;
  /** The first failed tasks; none if the queue can't be reached any longer. */
  failures: readonly TaskRow[];
}

/** Tells people what a controller does. */
export interface Reporter {
  /** A line that stays readable. `event`: one of many, which a live display shows as well. */
  line(text: string, kind?: 'event' | 'message'): void;
  /** Shows the state of the run; `view` is called as often as the display is drawn. */
  show(view: () => RunView): void;
  /** Reports the end. */
  conclude(end: RunEnd): void;
}

const PROGRESS_MS = 1_000;

/** A reporter that also notes in the sweep's job how far it is. */
export function notingReporter(reporter: Reporter, job: SweepProgress): Reporter {
  const note = ({ progress }: Pick<RunView, 'progress'>) => job.note(progress.ended, progress.total);
  let timer: NodeJS.Timeout | undefined;
  return {
    ...reporter,
    show: (view) => {
      reporter.show(view);
      clearInterval(timer);
      timer = setInterval(() => note(view()), PROGRESS_MS).unref();
      note(view());
    },
    conclude: (end) => {
      clearInterval(timer);
      note(end);
      reporter.conclude(end);
    },
  };
}

/** An experiment that a command works on. */
export interface Experiment {
  queue: Queue;
  project: Project;
  signals: ShutdownSignals;
}
