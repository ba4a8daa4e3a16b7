import type { ProcessDescription } from '../platform/index.ts';

/** `nvidia-cuda-mps-server`, as far as the kernel keeps names. The control daemon has the same, but is on no GPU. */
const NAME = 'nvidia-cuda-mps';

/** The most that a server uses of a GPU for itself (25 to 30 MiB were seen); before Volta, its clients' memory counts as its own. */
const OWN_MEMORY = 100 * 1024 ** 2;

/** Whether it is a server of the Multi-Process Service, through which several processes compute on a GPU. */
export function isMPSServer({ name, alive }: ProcessDescription): boolean {
  return name === NAME && alive === 'alive';
}

/** Whether it is a server that nobody computes through, as far as its memory tells. */
export function isIdleMPSServer(who: ProcessDescription, usedBytes: number | null): boolean {
  return isMPSServer(who) && (usedBytes ?? 0) <= OWN_MEMORY;
}
