import type { AttemptInfo, Counts, Pause, Queue, TaskRow } from '../queue/index.ts';

/** How an experiment stands. */
export interface Overview {
  counts: Counts;
  /** Tasks that the queue has. */
  total: number;
  /** Completed ones, whoever did them. */
  completed: number;
  /** Those that nothing more happens to by itself: completed, failed, cancelled. */
  ended: number;
  /** Living attempts, oldest first. */
  running: readonly AttemptInfo[];
  /** Who writes the tables of results; null: nobody. */
  manager: { host: string; pid: number } | null;
  /** null: tasks are given out. */
  pause: Pause | null;
  /** When a task that waits for its time comes again, in ms since the epoch; null: none waits. */
  nextTime: number | null;
}

export async function overview(queue: Queue): Promise<Overview> {
  const [counts, running, manager, pause, nextTime] = await Promise.all([
    queue.counts(),
    queue.attempts('living'),
    queue.manager(),
    queue.paused(),
    queue.nextTime(),
  ]);
  const ended = counts.completed + counts.failed + counts.cancelled;
  const total = ended + counts.pending + counts.active;
  const who = manager && { host: manager.host, pid: manager.pid };
  return { counts, total, completed: counts.completed, ended, running, manager: who, pause, nextTime };
}

/** Has everything come to its end? */
export function isOver({ total, ended }: Pick<Overview, 'total' | 'ended'>): boolean {
  return ended === total;
}

/** Tasks that have failed, in the order of arrival, at most `limit`. */
export async function failedTasks(queue: Queue, limit: number): Promise<TaskRow[]> {
  const rows: TaskRow[] = [];
  for await (const row of queue.tasks({ state: 'failed', limit })) rows.push(row);
  return rows;
}

/** "45/240 (18.8%)" */
export function formatProgress(done: number, total: number): string {
  // Only all is 100%.
  const percent = done === total ? 100 : Math.min((100 * done) / total, 99.9);
  return `${done}/${total} (${percent.toFixed(1)}%)`;
}
