import { GPUOwnerError } from '../../errors.ts';
import { isOver, type Overview, type WorkerEnd } from '../../experiments/index.ts';
import { EXIT_CODES } from '../exit-codes.ts';

export interface Outcome {
  /** What the process exits with. */
  code: number;
  /** How its workers ended. */
  ends: readonly WorkerEnd[];
}

const SOME_FAILED = 1;

/**
 * @param interrupted what to exit with if a signal has ended it before its time; null: none has
 * @param inStep do the tables have all rows, as far as that is this process's business?
 */
export function outcomeOf(
  now: Overview,
  ends: readonly WorkerEnd[],
  interrupted: number | null,
  inStep: boolean,
): Outcome {
  if (isOver(now) && inStep) return { code: now.completed === now.total ? 0 : SOME_FAILED, ends };
  return { code: interrupted ?? codeOf(ends) ?? SOME_FAILED, ends };
}

/**
 * As {@link outcomeOf} for workers alone: failures of tasks are the manager's business.
 * @param now null: the queue can't be reached any longer @returns the exit code
 */
export function outcomeOfWorkers(
  now: Overview | null,
  ends: readonly WorkerEnd[],
  interrupted: number | null,
): number {
  if (now !== null && isOver(now)) return 0;
  return interrupted ?? codeOf(ends) ?? (ends.every(({ why }) => why === 'finished') ? 0 : SOME_FAILED);
}

/** Of workers that could not go on. */
function codeOf(ends: readonly WorkerEnd[]): number | null {
  const error = ends.find((end) => end.why === 'error')?.error;
  return error instanceof GPUOwnerError ? EXIT_CODES[error.code] : null;
}
