// The program that has a CUDA context on claimed GPUs, and what its failures say of the GPUs.
import { closeSync } from 'node:fs';
import { driverLibraries } from '../config/index.ts';
import { GPUOwnerError, ifPossible } from '../errors.ts';
import {
  CUDA_HANGS,
  cudaCode,
  cudaFailed,
  explainCudaCode,
  formatVisibleDevices,
  type GPU,
  label,
  librarySetting,
  type Suspect,
} from '../gpus/index.ts';
import { native, nativeFile, nativeProgram, type PlaceholderFailure } from '../native.ts';
import { now, systemError, TIMEOUTS } from '../platform/index.ts';

export const PLACEHOLDER = 'gpu-owner-placeholder';

/** How often to look whether a probe has ended, and for how long, in ms. */
const END_POLL_MS = 1;
const END_TIMEOUT_MS = 5_000;
/** A line that has come meanwhile is read also after the time is up, in ms. */
const LAST_READ_MS = 20;
/** How much too early a wait may end, in ms. */
const CLOCK_TOLERANCE_MS = 5;

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

/** Blocks until the program has printed its line. @param until on the monotonic clock @returns '' if there is none by then */
export function readLineUntil(output: number, until: number): string {
  return native().processReadLine(output, Math.max(LAST_READ_MS, until - now()));
}

/** Reads why it failed from its line; null: it is ready. @param until how long it had, on the monotonic clock: without a line, it ended before or hangs */
export function failureIn(line: string, until: number): PlaceholderFailure | null {
  if (/^ready( \d+)?$/.test(line)) return null;
  const [, code, stage = '', uuid = '', text = 'CUDA did not start'] =
    /^failed (\d+) (\S+) (\S+) ?(.*)$/.exec(line) ?? [];
  const isLate = now() > until - CLOCK_TOLERANCE_MS;
  return { code: Number(code ?? (isLate ? CUDA_HANGS : 0)), stage, uuid, text };
}

/** How long CUDA may take to start on GPUs, in ms: where it hung lately, not for a minute again. */
export function startTimeout(gpus: readonly GPU[], suspects: ReadonlyMap<string, Suspect>): number {
  const hasHung = gpus.some(({ uuid }) => suspects.get(uuid)?.code === CUDA_HANGS);
  return hasHung ? TIMEOUTS.cudaProbe : TIMEOUTS.cudaStart;
}

/** A process that tries CUDA on GPUs: a context with a small allocation on each. This process's CUDA stays as it is. */
type Probe = ReturnType<typeof spawnPlaceholder>;

/** @returns null: none can be started */
function startProbe(gpus: readonly GPU[], all: readonly GPU[]): Probe | null {
  const env = { ...process.env, ...formatVisibleDevices(gpus, 'uuid', all) };
  return ifPossible(() => spawnPlaceholder(gpus, ['--seconds', '0'], env), null);
}

/** @param until on the monotonic clock @returns why CUDA failed; null: it works */
function endProbe({ pid, input, output }: Probe, until: number): PlaceholderFailure | null {
  const line = readLineUntil(output, until);
  const failure = failureIn(line, until);
  closeSync(output);
  closeSync(input); // which ends it
  if (failure?.code === CUDA_HANGS) process.kill(pid, 'SIGKILL');
  // Until then the driver lists it.
  for (let waited = 0; !native().processCollect(pid) && waited < END_TIMEOUT_MS; waited += END_POLL_MS)
    native().processSleep(END_POLL_MS);
  return failure;
}

/**
 * Tries CUDA on GPUs in another process, blocking.
 * @returns why it failed (null: it works, or nothing can be said), and the process, which has ended: some drivers list it for a while
 */
export function tryCUDA(
  gpus: readonly GPU[],
  all: readonly GPU[],
  timeoutMs = TIMEOUTS.cudaProbe,
): { failure: PlaceholderFailure | null; pid: number | null } {
  const probe = startProbe(gpus, all);
  if (probe === null) return { failure: null, pid: null };
  return { failure: endProbe(probe, now() + timeoutMs), pid: probe.pid };
}

/**
 * As {@link tryCUDA} on each GPU alone. The GPUs are tried at the same time, so that several that hang take no longer than one.
 * @returns the GPUs on which CUDA fails, with the reason
 */
export function tryEach<Each extends GPU>(
  gpus: readonly Each[],
  all: readonly GPU[],
): Map<Each, PlaceholderFailure> {
  const probes = gpus.map((gpu) => startProbe([gpu], all));
  const until = now() + TIMEOUTS.cudaProbe;
  return new Map(
    gpus.flatMap((gpu, i) => {
      const probe = probes[i] ?? null;
      const failure = probe === null ? null : endProbe(probe, until);
      return failure === null ? [] : [[gpu, failure]];
    }),
  );
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
  const hasNoAnswer = code === 0 || code === CUDA_HANGS;
  const subject =
    stage === 'load' ? "the CUDA driver library can't be used" : `the placeholder${where} failed`;
  const remedy =
    stage === 'load'
      ? ` (${librarySetting('GPU_OWNER_CUDA_LIBRARY')}). ${withoutPlaceholder(withoutOne)}`
      : hasNoAnswer
        ? `${/[.]$/.test(reason) ? '' : '.'} ${withoutPlaceholder(withoutOne)}`
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

/** 'CUDA failed with 999 (CUDA_ERROR_UNKNOWN) in cuInit: …', or that it did not answer, with what to do about it. */
function describeFailure(
  { code, stage }: Pick<PlaceholderFailure, 'code' | 'stage'>,
  gpu: GPU | undefined,
): string {
  const { cause, remedy } = explainCudaCode(code, gpu?.index);
  const machine =
    cudaCode(code).blames === 'machine' ? 'That concerns the whole machine, so no other GPU is tried. ' : '';
  return `${cudaFailed(code, stage)}: ${cause}. ${machine}${remedy}`;
}

/** The GPU on which CUDA hung for this process last, and when. */
let lastHang: { uuid: string; at: number } | null = null;

/** Whether CUDA has just hung on another GPU as well: each one more would take a claim a minute. */
function isSecondHang({ uuid }: GPU): boolean {
  const isSecond =
    lastHang !== null && lastHang.uuid !== uuid && now() - lastHang.at < 3 * TIMEOUTS.cudaStart;
  lastHang = { uuid, at: now() };
  return isSecond;
}

/**
 * The GPUs that are to blame for an error of a placeholder: others may do. None: the machine is, or the request, or it can't be told
 * which it is. If CUDA answers on none of several GPUs, or hangs on a second one, that is the machine's fault.
 */
export function gpusToBlame(error: GPUOwnerError, gpus: readonly GPU[], all: readonly GPU[]): GPU[] {
  const failure =
    error.code === 'ERR_PLACEHOLDER' ? (error.cause as PlaceholderFailure | undefined) : undefined;
  if (failure === undefined || failure.code === 0 || failure.stage === 'load') return [];
  if (cudaCode(failure.code).blames === 'machine') return [];
  const isHang = failure.code === CUDA_HANGS;
  const [first] = gpus;
  if (gpus.length === 1 && first !== undefined) return isHang && isSecondHang(first) ? [] : [first];
  const one = gpus.find(({ uuid }) => uuid === failure.uuid);
  if (one !== undefined) return [one];
  const failed = [...tryEach(gpus, all).keys()];
  return isHang && failed.length === gpus.length ? [] : failed;
}
