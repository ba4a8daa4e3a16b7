import { driverLibraries } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { type GPU, label, librarySetting, SHOWS_ONE_INSTANCE } from '../gpus/index.ts';
import { native, type PlaceholderFailure } from '../native.ts';
import { warnOnce } from '../platform/index.ts';

/** Enough to be counted, too little to be missed. */
const BYTES = 1024 ** 2;

/** The GPUs that CUDA was initialised for in this process, by the first claim with a placeholder. It never changes again. */
export interface Binding {
  /** In CUDA's order. */
  uuids: readonly string[];
  /** Which claim it was, in words. */
  by: string;
}

let binding: Binding | null = null;

export function currentBinding(): Binding | null {
  return binding;
}

/** Whether this process may be on a GPU: not unless it has initialised CUDA. */
export function usesCUDA(): boolean {
  return native().cudaState(driverLibraries().cuda) === 'initialized';
}

/** @throws ERR_CUDA_INITIALIZED where CUDA has been initialised by something else: the claim could not reach it any longer */
export function refuseInitialized(): void {
  if (binding !== null || !usesCUDA()) return;
  throw new GPUOwnerError(
    'ERR_CUDA_INITIALIZED',
    'CUDA was initialised in this process before the claim, and no longer reads CUDA_VISIBLE_DEVICES. Claim first, then load ' +
      'what uses CUDA (frameworks initialise it when they are first used), or start the program with `gpu-owner run`.',
  );
}

/** A CUDA context with a tiny allocation on each GPU, in this process. */
export class Placeholder {
  readonly pid = process.pid;
  readonly #id: number;

  private constructor(id: number) {
    this.#id = id;
  }

  isOn(): boolean {
    return true;
  }

  /**
   * Takes the GPUs. CUDA_VISIBLE_DEVICES must show them. Blocks for some 100 ms per GPU on real hardware.
   * @throws ERR_PLACEHOLDER, ERR_CUDA_INITIALIZED
   */
  static take(gpus: readonly GPU[]): Placeholder {
    const uuids = gpus.map(({ uuid }) => uuid);
    const taken = native().cudaTake(driverLibraries().cuda, uuids, BYTES);
    // Also where it failed half-way: what CUDA has once read, it keeps.
    if (binding === null && usesCUDA()) {
      const indices = gpus.map(label).join(', ');
      const at = new Date();
      binding = {
        uuids,
        // Nearly nobody asks, and the first time zone of a program takes it a third of a millisecond.
        get by() {
          return `the claim of GPU ${indices} at ${timeOfDay(at)}`;
        },
      };
    }
    if (typeof taken !== 'number') throw failure(taken, gpus);
    if (native().cudaHidden(taken) > 0) warnOnce(SHOWS_ONE_INSTANCE);
    return new Placeholder(taken);
  }

  end(): void {
    native().cudaRelease(this.#id);
  }
}

/** As 14:05:09. Not `toLocaleTimeString()`, whose first use takes 15 ms. */
function timeOfDay(time: Date): string {
  const parts = [time.getHours(), time.getMinutes(), time.getSeconds()];
  return parts.map((part) => String(part).padStart(2, '0')).join(':');
}

/** CUDA's code for a GPU in an exclusive compute mode that serves another process. */
const DEVICE_UNAVAILABLE = 46;

const WITHOUT =
  "Without a placeholder (`placeholder: 'none'`) the lease still holds, but tools that only look at the driver don't see it.";

function failure({ code, stage, uuid, text }: PlaceholderFailure, gpus: readonly GPU[]): GPUOwnerError {
  if (stage === 'load') {
    return new GPUOwnerError(
      'ERR_PLACEHOLDER',
      `the CUDA driver library can't be used: ${text} (${librarySetting('GPU_OWNER_CUDA_LIBRARY')}). ${WITHOUT}`,
    );
  }
  if (stage === 'uuid') {
    return new GPUOwnerError(
      'ERR_CUDA_INITIALIZED',
      `CUDA in this process doesn't show ${uuid}: it was initialised for other GPUs before the claim. Claim before anything uses CUDA.`,
    );
  }
  const gpu = gpus.find((one) => one.uuid === uuid);
  const where = gpu === undefined ? '' : ` on GPU ${label(gpu)}`;
  // Nobody else could compute there either, with or without a placeholder.
  const remedy =
    code === DEVICE_UNAVAILABLE ? 'That process is not visible here; choose another GPU.' : WITHOUT;
  return new GPUOwnerError(
    'ERR_PLACEHOLDER',
    `the placeholder${where} failed: ${text} (${stage}, CUDA code ${code}). ${remedy}`,
    {
      gpus:
        gpu === undefined ? [] : [{ index: gpu.index, instance: gpu.instance, uuid: gpu.uuid, reason: text }],
    },
  );
}
