/**
 * How long gpu-owner waits before it gives up on others, and how long some measurements last, in ms. Tests shorten them by a hidden variable:
 * `GPU_OWNER_TIMEOUTS=grace:300,upgrade:300`.
 */
const DEFAULTS = {
  /** Between SIGTERM and SIGKILL at the end of a command's time limit. */
  grace: 30_000,
  /** Until a wait gives up on files of gpu-owner or Node.js that were removed: package managers do that first, and then install new ones. */
  upgrade: 20_000,
  /** Until a waiter that isn't first becomes a smaller process: most waits are short. */
  handoverBehind: 2_000,
  /** The same for a wait that no request ahead delays, but isn't the first in the queue: to start Node.js costs it some 100 ms. */
  handoverAtFront: 10_000,
  /** Until a waiter is passed that doesn't take what it could have: longer than any that works takes for it. */
  stall: 2_500,
  /** For which the placeholder of a command that doesn't use its GPUs keeps them visibly taken. */
  placeholder: 60_000,
  /** For which CUDA may take to start for a claim. Some seconds on a machine of many GPUs are normal. */
  cudaStart: 60_000,
  /** The same where CUDA has just failed or hung, or a caller is to be told soon. */
  cudaProbe: 10_000,
  /** Until a claim tries a GPU again on which CUDA has failed for it. */
  retryGPU: 60_000,
  /** Until a claim goes on beside a program of safe-gpu that decides: that takes up to ten seconds when CUDA starts slowly. */
  safeGPU: 30_000,
  /** Which gpu_lock takes besides its nvidia-smi from looking for a lock file to having written its own. */
  gpuLock: 200,
  /** Until a viewer of `gpu-owner web` that doesn't read is dropped. Meanwhile it misses lines: each has everything. */
  stalledViewer: 15_000,
  /** For which the workers of a sweep and its manager on another machine keep tasks without a word of each other. */
  silence: 62_000,
  /** For which a command may take to end after that. */
  silenceGrace: 10_000,
  /** Until the self-test calls a driver one that never forgets killed processes, and not a slow one. */
  forgetting: 10_000,
  /** Until readings of a GPU that computes have risen: they are means over a second, at most. */
  readings: 5_000,
  /** Between two looks of `gpu-owner enforce`. */
  enforceLook: 30_000,
  /** Between SIGTERM and SIGKILL of `gpu-owner enforce`. */
  enforceKill: 30_000,
  /** For a search of `gpu-owner enforce` for the holders of leases: a user can open a million files. */
  enforceSearch: 10_000,
  /** For which a job that moves to another machine holds GPUs there until that is confirmed. */
  hold: 30_000,
  /** For which a job that moves doesn't ask a host that has refused it; twice as long each time. */
  refusal: 2_000,
  /** Until hosts that haven't answered are named, and the answers of the others shown. */
  slowHost: 2_000,
  /** Between two notes in the ledger of usage that a lease lasts. */
  usage: 60_000,
};

export type Timeout = keyof typeof DEFAULTS;

function isTimeout(name: string): name is Timeout {
  return Object.hasOwn(DEFAULTS, name);
}

/** @throws a variable that names no timeout */
function read(text: string): Record<Timeout, number> {
  const timeouts = { ...DEFAULTS };
  for (const pair of text.split(',').filter((each) => each !== '')) {
    const [, name = '', ms] = /^(\w+):(\d{1,9})$/.exec(pair) ?? [];
    if (!isTimeout(name))
      throw new Error(`GPU_OWNER_TIMEOUTS needs NAME:MS,…, not '${pair}'; names: ${Object.keys(timeouts)}`);
    timeouts[name] = Number(ms);
  }
  return timeouts;
}

export const TIMEOUTS: Readonly<Record<Timeout, number>> = read(process.env.GPU_OWNER_TIMEOUTS ?? '');
