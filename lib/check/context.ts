import { driverLibraries } from '../config/index.ts';
import { type GPU, snapshotSync } from '../gpus/index.ts';
import { native, nativeFile } from '../native.ts';
import { now, sleep } from '../platform/index.ts';
import type { RunCheck } from './check.ts';

/** Facts that all checks of a part need. */
export interface Context {
  runCheck: RunCheck;
  /** The words that start this program again, up to its own arguments. */
  command: readonly string[];
  /** Which GPUs, and whose locks count, as the options of claims. */
  claim: readonly string[];
  /** The GPUs to be used, as they were found. */
  gpus: readonly [GPU, ...GPU[]];
  /** How long the first snapshot took, in ms. */
  startedInMs: number;
}

/** The GPUs as they are now; one that the driver no longer tells stays as it was. */
export function lookAt(gpus: readonly GPU[]): GPU[] {
  const all = snapshotSync(gpus.map(({ index }) => index));
  return gpus.map((gpu) => sameIn(all, gpu) ?? gpu);
}

/** As {@link lookAt}. */
export function lookAtOne(gpu: GPU): GPU {
  return sameIn(snapshotSync([gpu.index]), gpu) ?? gpu;
}

/** The same GPU in another snapshot. */
export function sameIn(all: readonly GPU[], { uuid }: GPU): GPU | undefined {
  return all.find((gpu) => gpu.uuid === uuid);
}

/** Whether the driver keeps the GPU awake without a process; null: it doesn't tell. */
export function persistenceOf(index: number): boolean | null {
  return native().driverDescribe()[index]?.persistence ?? null;
}

/** Why no program can start CUDA; null: its library can be loaded. */
export function cudaObstacle(): string | null {
  const { path, missing } = native().cudaLibrary(driverLibraries().cuda);
  return path === '' || missing !== '' ? 'there is no CUDA (see cuda-library)' : null;
}

/**
 * The words that start our small CUDA program: it has a context and so much memory on each GPU until its standard input is closed.
 * With `compute` it prints a second line, and runs kernels.
 */
export function cudaProgram(gpus: readonly GPU[], bytes?: number, compute = false): string[] {
  const memory = bytes === undefined ? [] : ['--bytes', String(bytes)];
  const kernels = compute ? ['--compute'] : [];
  const uuids = gpus.flatMap(({ uuid }) => ['--uuid', uuid]);
  return [...smallProgram(), '--seconds', '0', ...memory, ...kernels, ...uuids];
}

/** The words that start it to print the UUIDs of the GPUs that CUDA shows to it. */
export function cudaList(): string[] {
  return [...smallProgram(), '--list'];
}

function smallProgram(): string[] {
  const { nvml, cuda } = driverLibraries();
  return [
    nativeFile('gpu-owner-placeholder'),
    ...(nvml ? ['--nvml', nvml] : []),
    ...(cuda ? ['--cuda', cuda] : []),
  ];
}

/** 'GPU-8-4-4-4-12' without the prefix, which CUDA doesn't know; older drivers call an instance 'MIG-GPU-…/gi/ci'. */
export function digitsOf(uuid: string): string {
  return uuid.replace(/^MIG-GPU-|^GPU-|^MIG-/, '').replace(/\/.*/, '');
}

/** '0.042 ms', '12 ms', '1.4 s' */
export function milliseconds(time: number): string {
  if (time >= 1_000) return `${(time / 1_000).toFixed(1)} s`;
  return `${time >= 10 ? Math.round(time) : time.toPrecision(2)} ms`;
}

const POLL_MS = 5;

/** @returns whether it came true in time */
export async function until(isTrue: () => boolean, timeoutMs: number): Promise<boolean> {
  for (const end = now() + timeoutMs; ; ) {
    if (isTrue()) return true;
    if (now() >= end) return false;
    await sleep(POLL_MS);
  }
}
