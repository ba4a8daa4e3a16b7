import { closeSync } from 'node:fs';
import { now } from '../clock.ts';
import { GPUOwnerError, type GPUReason } from '../errors.ts';
import { errno, native, OFD, SHARED } from '../native.ts';
import { formatDuration } from '../quantities.ts';
import { reasonsOf } from './candidates.ts';
import type { Claim, Refusal } from './claim.ts';
import { aborted, type Effectful, runAsync } from './effects.ts';
import { findTenure } from './lease.ts';

export interface WaitOptions {
  /** ms; null: without limit */
  maxWait: number | null;
  signal?: AbortSignal | undefined;
  /** Called whenever the reasons for waiting are known anew. */
  onWaiting?: ((gpus: readonly GPUReason[]) => void) | undefined;
}

/** How often GPUs are looked at that others use without a lease: nobody tells when they stop. In ms. */
const LOOK_AGAIN = 1_000;
/**
 * Between a lease and its tenure lies a moment in which there is nothing to wait on. Strangers' locks can make that last:
 * the pause doubles up to LOOK_AGAIN. In ms.
 */
const TENURE_PAUSE = 5;
/** A limit for what should not happen: a change that nobody told of. In ms. */
const LONGEST_WAIT = 30_000;

/**
 * Claims as soon as it can be done.
 * @param first the refusal of an attempt that was just made
 * @throws what `claim` throws, ERR_TIMEOUT, ERR_ABORTED
 */
export async function claimWhenFree(
  attempt: () => Effectful<Claim | Refusal>,
  { maxWait, signal, onWaiting }: WaitOptions,
  first?: Refusal,
): Promise<Claim> {
  const started = now();
  let pause = TENURE_PAUSE;
  for (let known = first; ; known = undefined) {
    const result = known ?? (await runAsync(attempt(), signal));
    if (result.granted) return result;
    if (result.error.code !== 'ERR_GPU_UNAVAILABLE') throw result.error;
    if (!result.possible) throw hopeless(result);
    const left = maxWait === null ? Number.POSITIVE_INFINITY : maxWait - (now() - started);
    if (left <= 0) throw timeout(maxWait ?? 0, result);
    onWaiting?.(reasonsOf(result.candidates));
    const seen = await change(result, { left, pause, signal });
    pause = seen ? TENURE_PAUSE : Math.min(2 * pause, LOOK_AGAIN);
  }
}

function hopeless({ error, candidates }: Refusal): GPUOwnerError {
  return new GPUOwnerError('ERR_GPU_UNAVAILABLE', `waiting would not help: ${error.message}`, {
    gpus: reasonsOf(candidates),
    cause: error,
  });
}

function timeout(maxWait: number, { error, candidates }: Refusal): GPUOwnerError {
  return new GPUOwnerError('ERR_TIMEOUT', `waited ${formatDuration(maxWait)} in vain: ${error.message}`, {
    gpus: reasonsOf(candidates),
    cause: error,
  });
}

/**
 * Resolves when a lease ends, when it is time to look again, or when time is up; whichever comes first.
 * @returns whether the end of each lease could be waited for
 */
async function change(
  { candidates, directory }: Pick<Refusal, 'candidates' | 'directory'>,
  { left, pause, signal }: { left: number; pause: number; signal: AbortSignal | undefined },
): Promise<boolean> {
  let longest = Math.min(left, LONGEST_WAIT);
  let seen = true;
  const descriptors: number[] = [];
  const cancels: (() => void)[] = [];
  try {
    await new Promise<void>((resolve, reject) => {
      if (signal?.aborted) return reject(aborted(signal));
      const onAbort = () => reject(aborted(signal));
      signal?.addEventListener('abort', onAbort, { once: true });
      cancels.push(() => signal?.removeEventListener('abort', onAbort));
      for (const { gpu, verdict } of candidates) {
        if (verdict.state === 'busy' || verdict.silent) longest = Math.min(longest, LOOK_AGAIN);
        if (verdict.state !== 'leased') continue;
        const tenure = findTenure(directory, gpu.uuid, gpu.parent);
        if (tenure === null) {
          longest = Math.min(longest, pause);
          seen = false;
          continue;
        }
        descriptors.push(tenure.descriptor);
        const wait = new (native().Wait)(tenure.descriptor, OFD, SHARED, tenure.byte, 1, (error) => {
          if (error === 0) return resolve();
          if (error === errno.ECANCELED) return;
          // No thread can be had to wait with.
          seen = false;
          const timer = setTimeout(resolve, pause);
          cancels.push(() => clearTimeout(timer));
        });
        cancels.push(() => wait.cancel());
      }
      const timer = setTimeout(resolve, longest);
      cancels.push(() => clearTimeout(timer));
    });
  } finally {
    for (const cancel of cancels) cancel();
    for (const descriptor of descriptors) closeSync(descriptor);
  }
  return seen;
}
