import { GPUOwnerError } from '../errors.ts';
import { byPlace, isInstance } from './instances.ts';
import type { GPU, Verdict } from './types.ts';

/**
 * Chooses `count` of the GPUs that are free: those with most free memory, then those with the lowest index. Of a GPU that
 * drives a display half of the free memory counts, so that a like one without is preferred, but not a far smaller one. GPUs
 * whose free memory is unknown come last. Where there aren't so many whole ones, MIG instances: the smallest, as whoever
 * needs a larger one says so; of the same size those with most free memory. The two are never mixed. The chosen ones are
 * returned in the order of their index, so that the order of devices in a program doesn't depend on a few bytes. null: there
 * aren't that many.
 */
export function select(candidates: readonly GPU[], count: number): GPU[] | null {
  if (!Number.isSafeInteger(count) || count < 1) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `count: ${count} is not a number of GPUs; right are 1, 2, …`,
    );
  }
  const whole = candidates.filter((gpu) => !isInstance(gpu));
  const kind = whole.length >= count ? whole : candidates.filter(isInstance);
  if (kind.length < count) return null;
  const size = (gpu: GPU) => (isInstance(gpu) ? (gpu.memory.totalBytes ?? Number.POSITIVE_INFINITY) : 0);
  const bySize = (a: GPU, b: GPU) => (size(a) === size(b) ? 0 : size(a) - size(b));
  return kind
    .sort((a, b) => bySize(a, b) || worth(b) - worth(a) || byPlace(a, b))
    .slice(0, count)
    .sort(byPlace);
}

function worth({ memory, displayActive }: GPU): number {
  if (memory.freeBytes === null) return displayActive ? -2 : -1;
  return displayActive ? memory.freeBytes / 2 : memory.freeBytes;
}

/** What is leased, busy or silent may become free, the rest won't. */
export function mayBecomeFree({ state, silent }: Pick<Verdict, 'state' | 'silent'>): boolean {
  return state !== 'excluded' && (state !== 'unavailable' || silent === true);
}

/** Whether `count` GPUs could be had by waiting. */
export function isPossible(count: number, verdicts: readonly Pick<Verdict, 'state' | 'silent'>[]): boolean {
  return verdicts.filter(mayBecomeFree).length >= count;
}
