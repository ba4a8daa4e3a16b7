import type { AttemptInfo, Counts, Pause, Queue, SearchRecord, TaskRow } from '../queue/index.ts';
import { strictJSON } from '../task/index.ts';
import { type Best, BestTrials, isTrial } from './best-trials.ts';

/** Tasks by their states, and how many there are. */
export interface Tally {
  counts: Counts;
  total: number;
  /** Completed tasks, whichever worker did them. */
  completed: number;
  /** Tasks that have ended: completed, failed, cancelled. */
  ended: number;
}

export function tallyOf(counts: Counts): Tally {
  const ended = counts.completed + counts.failed + counts.cancelled;
  return { counts, total: ended + counts.pending + counts.active, completed: counts.completed, ended };
}

/** The state of an experiment: all tasks that the queue has. */
export interface Progress extends Tally {
  /** Living attempts, oldest first. */
  running: readonly AttemptInfo[];
  /** The process that writes the tables of results; null: none. */
  manager: { host: string; pid: number } | null;
  /** null: tasks are given out. */
  pause: Pause | null;
  /** When a task that waits for its time comes again, in ms since the epoch; null: none waits. */
  nextTime: number | null;
}

export async function readProgress(queue: Queue): Promise<Progress> {
  const [counts, running, manager, pause, nextTime] = await Promise.all([
    queue.counts(),
    queue.attempts('living'),
    queue.manager(),
    queue.paused(),
    queue.nextTime(),
  ]);
  const who = manager && { host: manager.host, pid: manager.pid };
  return { ...tallyOf(counts), running, manager: who, pause, nextTime };
}

/** The state of an experiment, and of the part that a call asked for. */
export interface RunProgress extends Progress {
  asked: Tally;
  others: Tally;
  /** The best trial of the search; null: none is asked for, or it compares nothing. */
  best: Best | null;
}

/** Whether all tasks have ended. */
export function isOver({ total, ended }: Pick<Progress, 'total' | 'ended'>): boolean {
  return ended === total;
}

/** Progress, with what needs a person. */
export interface Status extends Progress {
  /** The first failed tasks, in the order of arrival: `counts` has how many there are. */
  failures: readonly TaskRow[];
  /** The last search, and its best trials; null: there was none. */
  search: (SearchRecord & { best: Best | null }) | null;
}

/** @param best how many of the best trials are wanted */
export async function readStatus(queue: Queue, best: number): Promise<Status> {
  const trials = new BestTrials(queue);
  await trials.update();
  const { search } = trials;
  const { counts, ...progress } = await readProgress(queue);
  // Trials to come are waiting, too.
  const more =
    search === null || search.isOver ? 0 : Math.max(0, search.trials - (await countTrials(queue, search)));
  const tally = tallyOf({ ...counts, pending: counts.pending + more });
  const failures = await readFailures(queue, tally);
  return {
    ...progress,
    ...tally,
    failures,
    search: search && { ...search, best: trials.best(best) },
  };
}

async function countTrials(queue: Queue, search: SearchRecord): Promise<number> {
  let count = 0;
  for await (const { task } of queue.tasks()) if (isTrial(search, task)) count++;
  return count;
}

const MAX_FAILURES = 20;

/** The first failed tasks, in the order of arrival. @param counts where none has failed, nothing is read */
export async function readFailures(
  queue: Queue,
  { counts }: Tally,
  isMeant: (id: string) => boolean = () => true,
): Promise<TaskRow[]> {
  const rows: TaskRow[] = [];
  if (counts.failed === 0) return rows;
  for await (const row of queue.tasks({ state: 'failed' })) {
    if (isMeant(row.task.id) && rows.push(row) === MAX_FAILURES) break;
  }
  return rows;
}

/** The contract of `exp status --json`: scripts depend on these names. */
export function statusJSON(
  project: string,
  queue: string,
  { counts, total, completed, running, manager, pause, nextTime, failures, search }: Status,
) {
  return {
    project,
    queue,
    total,
    counts,
    progress: formatProgress(completed, total),
    manager,
    pause: pause && { by: pause.by, message: pause.message, since: iso(pause.since) },
    nextTime: iso(nextTime),
    running: running.map(({ taskId, taskName, worker, since, log }) => ({
      id: taskId,
      name: taskName,
      worker: worker.name,
      host: worker.host,
      pid: worker.pid,
      gpus: worker.gpus,
      since: iso(since),
      log: log?.path ?? null,
    })),
    // The first of them: counts has how many there are.
    failures: failures.map(({ task, starts, error, ended }) => ({
      id: task.id,
      name: task.name,
      starts,
      error,
      ended: iso(ended),
    })),
    search: search && {
      phase: search.phase,
      trials: search.trials,
      metric: search.metric?.name ?? null,
      goal: search.metric?.goal ?? null,
      isOver: search.isOver,
      stopped: search.best?.stopped ?? 0,
      best: (search.best?.trials ?? []).map(({ task, value, stopped }) => ({
        id: task.id,
        name: task.name,
        value,
        stopped,
        parameters: JSON.parse(strictJSON(task.parameters)),
      })),
    },
  };
}

function iso(time: number | null): string | null {
  return time === null ? null : new Date(time).toISOString();
}

/** Formats progress as "45/240 (18.8%)". */
export function formatProgress(done: number, total: number): string {
  // Only all is 100%.
  const percent = done === total ? 100 : Math.min((100 * done) / total, 99.9);
  return `${done}/${total} (${percent.toFixed(1)}%)`;
}

const MIN_ENDS = 2;

/** Estimates how fast tasks end since it was made, and how long the rest takes. */
export class Eta {
  #first: { at: number; ended: number };
  #ended: number;

  /** @param at now, in ms. @param ended how many have ended before anything was watched */
  constructor(at: number, ended: number) {
    this.#first = { at, ended };
    this.#ended = ended;
  }

  /** @param ended how many have ended until now; fewer than before (some were retried): restarts */
  note(at: number, ended: number): void {
    if (ended < this.#ended) this.#first = { at, ended };
    this.#ended = ended;
  }

  /** Tasks per ms; null: not known yet. */
  rate(at: number): number | null {
    const count = this.#ended - this.#first.ended;
    return count < MIN_ENDS || at <= this.#first.at ? null : count / (at - this.#first.at);
  }

  /** How long the rest takes, in ms; null: not known yet. */
  left(at: number, rest: number): number | null {
    const rate = this.rate(at);
    return rate === null ? null : rest / rate;
  }
}

/** "3.2 tasks/s", in the unit in which it is a number that people like. @param rate tasks per ms */
export function formatRate(rate: number): string {
  for (const [unit, milliseconds] of [
    ['s', 1_000],
    ['min', 60_000],
    ['h', 3_600_000],
  ] as const) {
    const tasks = rate * milliseconds;
    if (tasks >= 1 || unit === 'h')
      return `${tasks >= 100 ? Math.round(tasks) : tasks.toFixed(1)} tasks/${unit}`;
  }
  return '';
}
