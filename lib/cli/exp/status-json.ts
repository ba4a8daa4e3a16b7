import { formatProgress, type Overview, type TaskRow, type WithoutResult } from '../../experiments/index.ts';

/** The contract of `exp status --json`: scripts depend on these names. */
export function experimentJSON(
  project: string,
  queue: string,
  { counts, total, completed, running, manager, pause, nextTime }: Overview,
  { failures, withoutResult }: { failures: readonly TaskRow[]; withoutResult: readonly WithoutResult[] },
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
    running: running.map(({ taskId, taskName, taker, since, log }) => ({
      id: taskId,
      name: taskName,
      worker: taker.worker,
      host: taker.host,
      pid: taker.pid,
      gpus: taker.gpus,
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
    withoutResult,
  };
}

function iso(time: number | null): string | null {
  return time === null ? null : new Date(time).toISOString();
}
