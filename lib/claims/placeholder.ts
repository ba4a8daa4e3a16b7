// The program that has a CUDA context on claimed GPUs, and what its failures say of the GPUs.
import { closeSync } from 'node:fs';
import { driverLibraries } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import {
  cudaCode,
  explainCudaCode,
  formatVisibleDevices,
  type GPU,
  label,
  librarySetting,
  showCudaCode,
} from '../gpus/index.ts';
import { native, nativeFile, nativeProgram, type PlaceholderFailure } from '../native.ts';
import { systemError } from '../platform/index.ts';

export const PLACEHOLDER = 'gpu-owner-placeholder';

/** How long CUDA may take to start before it is given up on, in ms. Some seconds on a machine of many GPUs are normal. */
export const CUDA_START_TIMEOUT_MS = 60_000;
/** The same where CUDA has just failed, or a caller is to be told soon. */
const PROBE_TIMEOUT_MS = 10_000;
/** How often to look whether a probe has ended, and for how long, in ms. */
const END_POLL_MS = 1;
const END_TIMEOUT_MS = 5_000;

/** Starts the program. @throws ERR_PLACEHOLDER */
export function spawnPlaceholder(gpus: readonly GPU[], options: readonly string[], env?: NodeJS.ProcessEnv) {
  const { nvml, cuda } = driverLibraries();
  const args = [
    PLACEHOLDER,
    ...(nvml ? ['--nvml', nvml] : []),
    ...(cuda ? ['--cuda', cuda] : []),
    ...gpus.flatMap(({ uuid }) => ['--uuid', uuid]),
    ...options,
  ];
  const variables = env && Object.entries(env).map(([name, value]) => `${name}=${value ?? ''}`);
  const spawned = native().processSpawn(nativeProgram(PLACEHOLDER), args, variables);
  if (spawned.error === 0) return spawned;
  throw new GPUOwnerError(
    'ERR_PLACEHOLDER',
    `${nativeFile(PLACEHOLDER)} can't be started: ${systemError(spawned.error)}. Is the package complete?`,
  );
}

/** Reads why it failed from its line; null: it is ready. Without a line, it ended before, or said nothing for too long. */
export function failureIn(line: string): PlaceholderFailure | null {
  if (/^ready( \d+)?$/.test(line)) return null;
  const [, code, stage = '', uuid = '', text = 'CUDA did not start'] =
    /^failed (\d+) (\S+) (\S+) ?(.*)$/.exec(line) ?? [];
  return { code: Number(code ?? 0), stage, uuid, text };
}

/**
 * Tries CUDA on GPUs in another process, blocking: a context with a small allocation on each. This process's CUDA stays as it is.
 * @returns why it failed (code 0: it didn't start in time; null: it works, or nothing can be said), and the process, which has ended: some
 *   drivers list it for a while
 */
export function tryCUDA(
  gpus: readonly GPU[],
  all: readonly GPU[],
): { failure: PlaceholderFailure | null; pid: number | null } {
  const env = { ...process.env, ...formatVisibleDevices(gpus, 'uuid', all) };
  let spawned: ReturnType<typeof spawnPlaceholder>;
  try {
    spawned = spawnPlaceholder(gpus, ['--seconds', '0'], env);
  } catch {
    return { failure: null, pid: null };
  }
  const { pid, input, output } = spawned;
  const failure = failureIn(native().processReadLine(output, PROBE_TIMEOUT_MS));
  closeSync(output);
  closeSync(input); // which ends it
  if (failure?.code === 0) process.kill(pid, 'SIGKILL');
  // Until then the driver lists it.
  for (let waited = 0; !native().processCollect(pid) && waited < END_TIMEOUT_MS; waited += END_POLL_MS)
    native().processSleep(END_POLL_MS);
  return { failure, pid };
}

/**
 * The error of a claim whose placeholder failed; the failure is its cause.
 * @param withoutOne what a user writes for a claim without a placeholder
 */
export function placeholderError(
  failure: PlaceholderFailure,
  gpus: readonly GPU[],
  withoutOne: string,
): GPUOwnerError {
  const { code, stage, text } = failure;
  const gpu = gpus.length === 1 ? gpus[0] : gpus.find(({ uuid }) => uuid === failure.uuid);
  const where = gpu === undefined ? '' : ` on GPU ${label(gpu)}`;
  const reason = stage === 'load' || code === 0 ? text : describeFailure(failure, gpu);
  const subject =
    stage === 'load' ? "the CUDA driver library can't be used" : `the placeholder${where} failed`;
  const remedy =
    stage === 'load'
      ? ` (${librarySetting('GPU_OWNER_CUDA_LIBRARY')}). ${withoutPlaceholder(withoutOne)}`
      : code === 0
        ? `. ${withoutPlaceholder(withoutOne)}`
        : '';
  const reasons =
    gpu === undefined ? [] : [{ index: gpu.index, instance: gpu.instance, uuid: gpu.uuid, reason }];
  return new GPUOwnerError('ERR_PLACEHOLDER', `${subject}: ${reason}${remedy}`, {
    gpus: reasons,
    cause: failure,
  });
}

function withoutPlaceholder(option: string): string {
  return `Without a placeholder (\`${option}\`) the lease still holds, but tools that only look at the driver don't see it.`;
}

/** 'CUDA failed with 999 (CUDA_ERROR_UNKNOWN) in cuInit: …', with what to do about it. */
export function describeFailure(
  { code, stage }: Pick<PlaceholderFailure, 'code' | 'stage'>,
  gpu: GPU | undefined,
): string {
  const { cause, remedy } = explainCudaCode(code, gpu?.index);
  const machine =
    cudaCode(code).blames === 'machine' ? 'That concerns the whole machine, so no other GPU is tried. ' : '';
  return `CUDA failed with ${showCudaCode(code)} in ${stage}: ${cause}. ${machine}${remedy}`;
}

/**
 * The GPUs that are to blame for an error of a placeholder: others may do. None: the machine is, or the request, or it can't be told
 * which it is.
 */
export function gpusToBlame(error: GPUOwnerError, gpus: readonly GPU[], all: readonly GPU[]): GPU[] {
  const failure =
    error.code === 'ERR_PLACEHOLDER' ? (error.cause as PlaceholderFailure | undefined) : undefined;
  if (failure === undefined || failure.code === 0 || failure.stage === 'load') return [];
  if (cudaCode(failure.code).blames === 'machine') return [];
  if (gpus.length === 1) return [...gpus];
  const one = gpus.find(({ uuid }) => uuid === failure.uuid);
  return one === undefined ? gpus.filter((gpu) => tryCUDA([gpu], all).failure !== null) : [one];
}
