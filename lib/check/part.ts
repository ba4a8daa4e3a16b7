import { arch, release } from 'node:os';
import { type ClaimOptions, GPUOwner, snapshotAfterStartup } from '../claims/index.ts';
import { driverLibraries, simulatedMachine } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { cudaVersion, type GPU, inheritedClaim, isWSL, whichContainer } from '../gpus/index.ts';
import { native } from '../native.ts';
import { now, onWarning, ownPackage, showValue } from '../platform/index.ts';
import { type CheckName, type CheckResult, checkRunner } from './check.ts';
import { type Context, cudaObstacle, persistenceOf } from './context.ts';
import { checkInside } from './inside.ts';
import { checkOutside } from './outside.ts';
import { stopPrograms } from './subprocess.ts';

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

/** A line of JSON that a part prints. */
export type PartMessage =
  | { machine: { driver: DriverReport; gpus: GPUReport[]; claimed: readonly string[] } }
  | { begun: CheckName }
  | { result: CheckResult }
  | { done: true };

interface PartOptions {
  command: readonly string[];
  claim: readonly string[];
  /** The same for claims of this process. */
  claimOptions: ClaimOptions;
  /** UUIDs of the GPUs to be claimed; null: CUDA_VISIBLE_DEVICES has those that are claimed. */
  on: readonly string[] | null;
  write: (line: string) => void;
}

/** Makes the checks of one part for the process that has started this one, and tells it line by line. */
export async function runPart(name: string, options: PartOptions): Promise<void> {
  const { command, claim, claimOptions, on } = options;
  // The parent of this process is gone, or has given up on it.
  process.stdin.on('close', () => void stopPrograms().then(() => process.exit(0))).resume();
  onWarning(() => {});
  if (name === 'owner')
    return ownUntilKilled({ ...claimOptions, count: on?.length ?? 1, devices: on ?? [] }, options);
  const tell = (message: PartMessage) => options.write(JSON.stringify(message));
  const began = now();
  const all = await snapshotAfterStartup();
  const startedInMs = now() - began;
  const uuids = on ?? [...(inheritedClaim(all) ?? [])];
  const [first, ...others] = uuids.flatMap((uuid) => all.filter((gpu) => gpu.uuid === uuid));
  if (first === undefined)
    throw new GPUOwnerError('ERR_DRIVER', 'the driver no longer lists the GPUs of the self-test');
  const gpus: Context['gpus'] = [first, ...others];
  const context: Context = { runCheck: checkRunner(tell, cudaObstacle()), command, claim, gpus, startedInMs };
  if (name === 'inside' || name === 'claim') {
    tell({ machine: { driver: driverReport(), gpus: gpus.map(gpuReport), claimed: uuids } });
    if (name === 'inside') await checkInside(context);
  } else if (name === 'outside') {
    await checkOutside(context, claimOptions);
  } else {
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', `there is no part ${showValue(name)} of the self-test`);
  }
  tell({ done: true });
}

/** Claims for this process, as a program with the library does, and is killed. */
async function ownUntilKilled(claimOptions: ClaimOptions, { write }: PartOptions): Promise<void> {
  const owner = new GPUOwner(claimOptions);
  write(JSON.stringify({ owned: owner.devices.length }));
  await new Promise(() => {}); // until standard input is closed
}

function driverReport(): DriverReport {
  const { version: cuda } = native().cudaLibrary(driverLibraries().cuda);
  return {
    version: native().driverLibrary().version,
    cuda: cudaVersion(cuda),
    gpuOwner: ownPackage().version,
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
