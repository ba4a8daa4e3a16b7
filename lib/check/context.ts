import { arch, release } from 'node:os';
import type { ClaimOptions } from '../claims/index.ts';
import { driverLibraries, simulatedMachine } from '../config/index.ts';
import { cudaVersion, type GPU, isWSL, snapshotSync, whichContainer } from '../gpus/index.ts';
import { native, nativeFile } from '../native.ts';
import { now, ownPackage, sleep } from '../platform/index.ts';
import type { Subprocess } from './subprocess.ts';

/** The driver, and what of the system changes how it behaves. */
export interface DriverReport {
  version: string;
  /** The newest CUDA that it supports: '13.0'; null: it doesn't tell. */
  cuda: string | null;
  /** The version of gpu-owner. */
  gpuOwner: string;
  node: string;
  kernel: string;
  architecture: string;
  /** Which kind: 'docker'; null: none. */
  container: string | null;
  wsl: boolean;
  /** The simulated machine; null: a real one. */
  simulated: string | null;
}

/** A GPU that was claimed. */
export interface GPUReport {
  index: number;
  instance: number | null;
  name: string;
  totalBytes: number | null;
  computeMode: GPU['computeMode'];
  migEnabled: boolean | null;
  persistence: boolean | null;
}

/** What the self-test has claimed. */
export interface Machine {
  driver: DriverReport;
  gpus: GPUReport[];
  claimed: readonly string[];
}

export function describeMachine(gpus: readonly GPU[]): Machine {
  const driver = {
    version: native().driverLibrary().version,
    cuda: cudaVersion(native().cudaLibrary(driverLibraries().cuda).version),
    gpuOwner: ownPackage().version,
    node: process.version,
    kernel: release(),
    architecture: arch(),
    container: whichContainer(),
    wsl: isWSL(),
    simulated: simulatedMachine(),
  };
  const reports = gpus.map(({ index, instance, name, memory, computeMode, migEnabled }) => {
    const { totalBytes } = memory;
    return { index, instance, name, totalBytes, computeMode, migEnabled, persistence: persistenceOf(index) };
  });
  return { driver, gpus: reports, claimed: gpus.map(({ uuid }) => uuid) };
}

/** A program that runs on the GPUs during several checks. */
export interface RunningProgram {
  program: Subprocess;
  /** The GPUs as they were before. */
  before: readonly GPU[];
  /** How it began, as the check that started it has found out. */
  state: string | null;
}

/** Facts that all checks of a part need. */
export interface Context {
  /** The words that start this program again, up to its own arguments. */
  command: readonly string[];
  /** Which GPUs, and whose locks count, as the options of claims. */
  claim: readonly string[];
  /** The same for claims of this process. */
  options: ClaimOptions;
  /** The GPUs to be used, as they were found. */
  gpus: readonly [GPU, ...GPU[]];
  /** How long the first snapshot took, in ms. */
  startedInMs: number;
  /** What an earlier check has started; null: nothing runs. */
  running: RunningProgram | null;
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

/** The words that start our small CUDA program: it has a context on each GPU until its standard input is closed. */
export function cudaProgram(gpus: readonly GPU[]): string[] {
  const uuids = gpus.flatMap(({ uuid }) => ['--uuid', uuid]);
  return [...smallProgram(), '--seconds', '0', ...uuids];
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
