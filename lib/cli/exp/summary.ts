import { EXIT_CODES, GPUOwnerError } from '../../errors.ts';
import { listWords, sanitize, shellWords } from '../../platform/index.ts';
import { isOver, type Progress, type RunEnd, type WorkerEnd } from '../../sweeps/index.ts';
import type { InferValues } from '../command-line.ts';
import { type QUEUE, sameQueue } from './queue-options.ts';
import { bestLines, counts } from './render.ts';

const MAX_FAILURES = 3;
const MAX_TABLES = 3;

/** Says how a run ended, and what to do next, in lines. @param lifts whether starting it again ends a pause after failures */
export function summary(
  { progress: now, others, best, stops, tables, failures }: RunEnd,
  values: InferValues<typeof QUEUE>,
  lifts: boolean,
): string[] {
  const command = (name: string) => shellWords(['gpu-owner', 'exp', name, ...sameQueue(values)]);
  const lines = [`${now.total} ${now.total === 1 ? 'task' : 'tasks'}: ${counts(now)}`];
  const { pause, counts: all } = now;
  if (pause?.by !== 'failures') lines.push(...stops);
  if (pause !== null) {
    const [first = '', ...details] = pause.message.split('\n');
    lines.push(
      `paused${pause.by === 'failures' ? ' after failures' : ''}${first === '' ? '' : `: ${first}`}`,
      ...details,
    );
    lines.push(
      lifts && pause.by === 'failures' ? 'a new start resumes it' : `to resume: ${command('resume')}`,
    );
  }
  if (all.failed > 0) {
    for (const { task, error } of failures.slice(0, MAX_FAILURES)) {
      lines.push(`failed: ${task.name}: ${sanitize(error?.split('\n')[0], 300)}`);
    }
    if (all.failed > MAX_FAILURES) lines.push(`and ${all.failed - MAX_FAILURES} more failed`);
    lines.push(`their output: ${command('logs')} NAME; start them again: ${command('retry')} failed`);
  }
  lines.push(...bestLines(best));
  if (tables !== null && now.completed > 0) {
    const more = tables.length > MAX_TABLES ? [`${tables.length - MAX_TABLES} more`] : [];
    lines.push(`results: ${listWords([...tables.slice(0, MAX_TABLES), ...more])}`);
  }
  if (others.total > 0) {
    const tasks = others.total === 1 ? 'task' : 'tasks';
    lines.push(`besides, the task list has ${others.total} ${tasks} of other sweeps: ${counts(others)}`);
  }
  if (!isOver(now) && pause === null) lines.push('a new start continues where this one stopped');
  return lines;
}

const SOME_FAILED = 1;

/** The exit code of `exp run` and `exp manager`. */
export function exitCode({ progress: now, workers, tablesComplete, interrupted }: RunEnd): number {
  if (isOver(now) && tablesComplete) return now.completed === now.total ? 0 : SOME_FAILED;
  return interrupted ?? codeOf(workers) ?? SOME_FAILED;
}

/**
 * The exit code of workers alone: failures of tasks are the manager's business.
 * @param now null: the queue can't be reached any longer
 * @param interrupted the exit code if a signal has ended them; null: no signal came
 */
export function exitCodeOfWorkers(
  now: Progress | null,
  workers: readonly WorkerEnd[],
  interrupted: number | null,
): number {
  if (now !== null && isOver(now)) return 0;
  const isFinished = workers.every(({ why }) => why === 'finished');
  return interrupted ?? codeOf(workers) ?? (isFinished ? 0 : SOME_FAILED);
}

/** The exit code of the error that has ended a worker; null: none has. */
function codeOf(workers: readonly WorkerEnd[]): number | null {
  const error = workers.find((end) => end.why === 'error')?.error;
  return error instanceof GPUOwnerError ? EXIT_CODES[error.code] : null;
}
