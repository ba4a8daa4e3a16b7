import { cudaOrder, type GPU } from '../gpus/index.ts';
import { warnOnce } from '../platform/index.ts';

let known: { of: string; ordinals: Map<string, number> } | undefined;

/**
 * How CUDA counts this machine's GPUs without CUDA_VISIBLE_DEVICES, by UUID: the numbers of programs that use PyTorch. Where
 * CUDA can't tell, nothing is known, as a guess would be about somebody else's GPU.
 */
export function ordinalsOf(gpus: readonly GPU[]): Map<string, number> {
  const of = gpus.map(({ uuid, name }) => `${uuid} ${name}`).join();
  if (known?.of !== of) known = { of, ordinals: ask(gpus) };
  return known.ordinals;
}

function ask(gpus: readonly GPU[]): Map<string, number> {
  const order = cudaOrder(gpus);
  if ('uuids' in order) return new Map(order.uuids.map((uuid, ordinal) => [uuid, ordinal]));
  warnOnce(`lock files of programs that count GPUs as PyTorch does are left alone: ${order.why}`);
  return new Map();
}
