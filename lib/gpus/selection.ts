import { GPUOwnerError } from '../errors.ts';
import type { Verdict } from './judge.ts';
import type { GPU } from './types.ts';

/**
 * Chooses `count` of the GPUs that are free: those with most free memory, then those with the lowest index (GPUs
 * whose free memory is unknown come last). The chosen ones are returned in the order of their index, so that the
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
    .sort((a, b) => freeMemory(b) - freeMemory(a) || a.index - b.index)
    .slice(0, count)
    .sort((a, b) => a.index - b.index);
}

function freeMemory(gpu: GPU): number {
  return gpu.memory.freeBytes ?? -1;
}

/** What is leased, busy or silent may become free, the rest won't. */
export function mayBecomeFree({ state, silent }: Pick<Verdict, 'state' | 'silent'>): boolean {
  return state !== 'excluded' && (state !== 'unavailable' || silent === true);
}

/** Whether `count` GPUs could be had by waiting. */
export function isPossible(count: number, verdicts: readonly Pick<Verdict, 'state' | 'silent'>[]): boolean {
  return verdicts.filter(mayBecomeFree).length >= count;
}
