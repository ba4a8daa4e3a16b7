// Whole GPUs and MIG instances stand side by side in the same arrays: what tells them apart, and what keeps them apart.
import type { GPU, Verdict } from './types.ts';

/** How people name a GPU ('0') or a MIG instance ('0:2': number 2 of GPU 0). */
export function label({ index, instance }: { index: number; instance?: number | null | undefined }): string {
  return typeof instance === 'number' ? `${index}:${instance}` : String(index);
}

export function isInstance(gpu: Pick<GPU, 'instance'>): boolean {
  return typeof gpu.instance === 'number';
}

/** Whether MIG is on: then the GPU isn't used as a whole. */
export function isDivided(gpu: Pick<GPU, 'migEnabled' | 'migInstances'>): boolean {
  return gpu.migEnabled === true || gpu.migInstances.length > 0;
}

/** By GPU; a GPU stands before its instances. */
export function byPlace(a: Pick<GPU, 'index' | 'instance'>, b: Pick<GPU, 'index' | 'instance'>): number {
  return a.index - b.index || (a.instance ?? -1) - (b.instance ?? -1);
}

/**
 * One claim never mixes whole GPUs and MIG instances: CUDA_VISIBLE_DEVICES can't. For one, either will do. For several,
 * whole GPUs are meant, as instances don't work together (no peer access), unless fewer may be had than are
 * asked for, but so many instances: somebody restricted the claim to instances, or all GPUs are divided.
 * @returns the candidates, those of the other kind excluded
 */
export function separateKinds<Each extends { gpu: GPU; verdict: Verdict }>(
  candidates: readonly Each[],
  count: number,
): Each[] {
  const instances = candidates.filter(({ gpu }) => isInstance(gpu));
  if (count < 2 || instances.length === 0) return [...candidates];
  const allowed = ({ verdict }: Each) => verdict.state !== 'excluded';
  const whole = candidates.filter((each) => !isInstance(each.gpu) && !isDivided(each.gpu) && allowed(each));
  const takesInstances = whole.length < count && instances.filter(allowed).length >= count;
  const reason =
    takesInstances || whole.length < count
      ? 'one claim never mixes whole GPUs and MIG instances'
      : 'several are taken as whole GPUs (to claim MIG instances, name them)';
  return candidates.map((each) =>
    isInstance(each.gpu) !== takesInstances && allowed(each) && !isDivided(each.gpu)
      ? { ...each, verdict: { state: 'excluded', reason, transient: false } }
      : each,
  );
}

/** Said where several MIG instances were claimed. */
export const SHOWS_ONE_INSTANCE =
  'CUDA shows a process only the first of these MIG instances (drivers before R570 show one, later ones one of each GPU ' +
  'instance). All are leased: start a process for each, with CUDA_VISIBLE_DEVICES set to one of the UUIDs.';
