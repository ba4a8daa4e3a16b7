import { GPUOwnerError } from '../errors.ts';
import type { Verdict } from './judge.ts';
import type { GPU } from './types.ts';

/**
 * Chooses `count` of the GPUs that are free: those with most free memory, then those with the lowest index. Of a GPU that
 * drives a display half of the free memory counts, so that a like one without is preferred, but not a far smaller one. GPUs
 * whose free memory is unknown come last. The chosen ones are returned in the order of their index, so that the
 * order of devices in a program doesn't depend on a few bytes. null: there aren't that many.
 */
export function select(candidates: readonly GPU[], count: number): GPU[] | null {
  if (!Number.isSafeInteger(count) || count < 1) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `count: ${count} is not a number of GPUs; right are 1, 2, …`,
    );
  }
  if (candidates.length < count) return null;
  return [...candidates]
    .sort((a, b) => worth(b) - worth(a) || a.index - b.index)
    .slice(0, count)
    .sort((a, b) => a.index - b.index);
}

function worth({ memory, displayActive }: GPU): number {
  if (memory.freeBytes === null) return displayActive ? -2 : -1;
  return displayActive ? memory.freeBytes / 2 : memory.freeBytes;
}

/**
 * Whether `count` GPUs could be had by waiting: what is leased, busy or silent may become free, the rest won't.
 */
export function isPossible(count: number, verdicts: Iterable<Pick<Verdict, 'state' | 'silent'>>): boolean {
  let possible = 0;
  for (const { state, silent } of verdicts) {
    if (state !== 'excluded' && (state !== 'unavailable' || silent)) possible++;
  }
  return possible >= count;
}
