import { readFileSync } from 'node:fs';
import { arch, release } from 'node:os';
import { dirname, join } from 'node:path';
import { awaitDriverStartup, runSync } from '../claims/index.ts';
import { driverLibraries, simulatedMachine } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { type GPU, inheritedClaim, isWSL, whichContainer } from '../gpus/index.ts';
import { native, nativeFile } from '../native.ts';
import { now, onWarning, showValue } from '../platform/index.ts';
import { type CheckName, type CheckResult, type Examine, examiner } from './check.ts';
import { stopPrograms } from './program.ts';

/** The driver, and what of the system changes how it behaves. */
export interface DriverReport {
  version: string;
  /** The newest CUDA that it supports: '13.0'; null: it doesn't tell. */
  cuda: string | null;
  /** Of gpu-owner. */
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

/** A line of JSON that a part prints. */
export type PartMessage =
  | { machine: { driver: DriverReport; gpus: GPUReport[]; claimed: readonly string[] } }
  | { begun: CheckName }
  | { result: CheckResult }
  | { done: true };

/** What all checks of a part know. */
export interface Context {
  examine: Examine;
  /** The words that start this program again, up to its own arguments. */
  command: readonly string[];
  /** Which GPUs, and whose locks count, as the options of claims. */
  claim: readonly string[];
  /** The GPUs to be used, as they were found. */
  gpus: readonly GPU[];
  /** How long the first snapshot took, in ms. */
  startedInMs: number;
}

export interface PartOptions {
  command: readonly string[];
  claim: readonly string[];
  /** UUIDs of the GPUs to be claimed; null: CUDA_VISIBLE_DEVICES has those that are claimed. */
  on: readonly string[] | null;
  write: (line: string) => void;
}

/** Makes the checks of one part for the process that has started this one, and tells it line by line. */
export async function runPart(name: string, options: PartOptions): Promise<void> {
  const { command, claim, on } = options;
  // Whoever started this process is gone, or has given up on it.
  process.stdin.on('close', () => void stopPrograms().then(() => process.exit(0))).resume();
  onWarning(() => {});
  const tell = (message: PartMessage) => options.write(JSON.stringify(message));
  const began = now();
  const all = runSync(awaitDriverStartup(1));
  const startedInMs = now() - began;
  const uuids = on ?? [...(inheritedClaim(all) ?? [])];
  const gpus = uuids.map((uuid) => all.find((gpu) => gpu.uuid === uuid)).filter((gpu) => gpu !== undefined);
  const context: Context = { examine: examiner(tell), command, claim, gpus, startedInMs };
  if (name === 'inside') {
    tell({ machine: { driver: driverReport(), gpus: gpus.map(gpuReport), claimed: uuids } });
    await (await import('./inside.ts')).checkInside(context);
  } else if (name !== 'outside') {
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', `there is no part ${showValue(name)} of the self-test`);
  }
  tell({ done: true });
}

function driverReport(): DriverReport {
  const { version: cuda } = native().cudaLibrary(driverLibraries().cuda);
  const packageFile = join(dirname(import.meta.dirname), 'package.json');
  return {
    version: native().driverLibrary().version,
    cuda: cuda > 0 ? `${Math.floor(cuda / 1000)}.${(cuda % 1000) / 10}` : null,
    gpuOwner: JSON.parse(readFileSync(packageFile, 'utf8')).version,
    node: process.version,
    kernel: release(),
    architecture: arch(),
    container: whichContainer(),
    wsl: isWSL(),
    simulated: simulatedMachine(),
  };
}

function gpuReport({ index, instance, name, memory, computeMode, migEnabled }: GPU): GPUReport {
  const { totalBytes } = memory;
  return { index, instance, name, totalBytes, computeMode, migEnabled, persistence: persistenceOf(index) };
}

/** Whether the driver keeps the GPU awake without a process; null: it doesn't tell. */
export function persistenceOf(index: number): boolean | null {
  return native().driverDescribe()[index]?.persistence ?? null;
}

/** The words that start our small CUDA program: it has a context on each GPU until its standard input is closed. */
export function cudaProgram(gpus: readonly GPU[]): string[] {
  return [...smallProgram(), '--seconds', '0', ...gpus.flatMap(({ uuid }) => ['--uuid', uuid])];
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
