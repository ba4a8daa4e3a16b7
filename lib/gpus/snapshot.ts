import { GPUOwnerError } from '../errors.ts';
import { type DriverDescription, native } from '../native.ts';
import { interruptedError, openDriver } from './driver.ts';
import type { GPU, GPUProcess, MIGInstance } from './types.ts';

// The layout of the numbers is native/bindings/driver.cc's.
const HEADER = 2;
// Positions in a GPU's block, in its order.
let length = 0;
const HEALTH = place();
const MEMORY = place(4);
const POWER = place();
const POWER_LIMIT = place();
const UTILIZATION = place();
const TEMPERATURE = place();
const ENERGY = place();
const COMPUTE_MODE = place();
const DISPLAY = place();
const MIG = place();
const MEMORY_ERRORS = place();
const REPAIR_PENDING = place();
const REPAIR_FAILED = place();
const PROCESSES_KNOWN = place();
const PROCESSES = place();
const INSTANCES = place();
const PER_GPU = length;
const NOT_RESPONDING = -1;
const COMPUTE_MODES = ['default', 'exclusive-thread', 'prohibited', 'exclusive-process'] as const;

/** The place of the next numbers. */
function place(count = 1): number {
  length += count;
  return length - count;
}

let descriptions: DriverDescription[] = [];
let describedVersion: number | undefined;

/** Which GPUs to look at: all of them, or those with these indices only. */
export type Asked = readonly number[] | undefined;

/**
 * Every GPU as the driver describes it at this moment, in NVML's order, each followed by its MIG instances. Blocks:
 * microseconds as a rule, one to three seconds per GPU at first where no process keeps the driver awake; a GPU that hangs is
 * given up on within 1.2 s, as a rule 0.8, and reported with health 'not-responding'. GPUs that were not asked for are returned
 * as they were last seen. The health of the memory is up to five seconds old, unless the GPUs are named in `asked`.
 *
 * @throws ERR_NO_DRIVER, ERR_DRIVER; ERR_ABORTED when a signal that the program handles arrived meanwhile
 */
export function snapshotSync(asked?: Asked): GPU[] {
  openDriver();
  const taken = native().driverSnapshot(asked);
  if (taken === undefined) throw interruptedError();
  return decode(taken);
}

/** As {@link snapshotSync}, without blocking the event loop. */
export async function snapshot(asked?: Asked): Promise<GPU[]> {
  openDriver();
  let taken: Float64Array;
  try {
    taken = await new Promise((resolve) => native().driverSnapshotAsync(resolve, asked));
  } catch {
    return snapshotSync(asked); // no thread is to be had (ulimit -u): better late than never
  }
  return decode(taken);
}

function decode(taken: Float64Array): GPU[] {
  numbers = taken;
  at = HEADER;
  const [version, count = 0] = numbers;
  // Names are strings, which are dear to carry over; they are fetched again only when a GPU or an instance is new.
  if (version !== describedVersion) {
    descriptions = native().driverDescribe();
    describedVersion = version;
  }
  const gpus: GPU[] = [];
  for (let index = 0; index < count; index++) decodeGPU(index, gpus);
  if (at !== numbers.length) {
    throw new GPUOwnerError(
      'ERR_UNSUPPORTED_PLATFORM',
      `the native addon is from another version of gpu-owner: a snapshot has ${numbers.length} numbers, and ${at} were read. Install gpu-owner again; in a clone, run \`npm run install\`.`,
    );
  }
  return gpus;
}

// A snapshot is decoded in one go: its numbers, and the position in them.
let numbers: Float64Array = new Float64Array();
let at = 0;

function next(): number {
  return numbers[at++] ?? Number.NaN;
}

/** A number that far from the position. */
function field(offset: number): number {
  return numbers[at + offset] ?? Number.NaN;
}

/** null for what the driver can't give. */
function known(value: number): number | null {
  return Number.isNaN(value) ? null : value;
}

function milli(value: number): number | null {
  return Number.isNaN(value) ? null : value / 1000;
}

function flag(value: number): boolean | null {
  return Number.isNaN(value) ? null : value !== 0;
}

function memoryAt(offset: number): GPU['memory'] {
  return {
    totalBytes: known(field(offset)),
    usedBytes: known(field(offset + 1)),
    freeBytes: known(field(offset + 2)),
    reservedBytes: known(field(offset + 3)),
  };
}

function readProcesses(count: number): GPUProcess[] {
  if (count === 0) return [];
  const processes: GPUProcess[] = new Array(count);
  for (let i = 0; i < count; i++) {
    const process: GPUProcess = {
      pid: next(),
      type: next() === 0 ? 'compute' : 'graphics',
      usedBytes: known(next()),
    };
    const smPercent = known(next());
    if (smPercent !== null) process.smPercent = smPercent;
    processes[i] = process;
  }
  return processes;
}

/** Appends the GPU and its instances. */
function decodeGPU(index: number, gpus: GPU[]): void {
  const description = descriptions[index];
  const health = field(HEALTH);
  const processCount = field(PROCESSES);
  const instanceCount = field(INSTANCES);
  const memoryErrors = field(MEMORY_ERRORS);
  const fault = memoryFault(memoryErrors, field(REPAIR_FAILED) === 1);
  const gpu: GPU = {
    index,
    instance: null,
    uuid: description?.uuid ?? '',
    parent: null,
    name: description?.name ?? '',
    pciBusId: description?.pciBusId || null,
    health: health !== 0 ? healthOf(health) : fault === null ? 'ok' : 'unhealthy',
    healthReason: health !== 0 ? healthReason(health) : fault,
    memory: memoryAt(MEMORY),
    powerWatts: milli(field(POWER)),
    powerLimitWatts: milli(field(POWER_LIMIT)),
    utilizationPercent: known(field(UTILIZATION)),
    temperatureCelsius: known(field(TEMPERATURE)),
    memoryRepairPending: flag(field(REPAIR_PENDING)),
    computeMode: COMPUTE_MODES[field(COMPUTE_MODE)] ?? null,
    displayActive: flag(field(DISPLAY)),
    migEnabled: flag(field(MIG)),
    migInstances: [],
    processes: null,
  };
  const processesKnown = field(PROCESSES_KNOWN) === 1;
  const energy = milli(field(ENERGY));
  if (energy !== null) gpu.energyJoules = energy;
  if (!Number.isNaN(memoryErrors)) gpu.memoryErrors = memoryErrors;
  at += PER_GPU;
  const processes = readProcesses(processCount);
  if (processesKnown) gpu.processes = processes;
  gpus.push(gpu);
  if (instanceCount > 0) decodeInstances(gpu, description?.instances ?? [], instanceCount, gpus);
}

function decodeInstances(
  gpu: GPU,
  described: DriverDescription['instances'],
  count: number,
  gpus: GPU[],
): void {
  const first = gpus.length;
  for (let i = 0; i < count; i++) {
    const uuid = described[i]?.uuid ?? '';
    const name = described[i]?.name ?? '';
    const instance = next();
    const gpuInstanceId = next();
    const computeInstanceId = next();
    const health = next();
    const memory = memoryAt(0);
    at += 4;
    const computeMode = COMPUTE_MODES[next()] ?? null;
    const processesKnown = next() === 1;
    const processes = readProcesses(next());
    const { totalBytes, usedBytes, freeBytes } = memory;
    gpu.migInstances.push({
      uuid,
      name,
      gpuInstanceId,
      computeInstanceId,
      memory: { totalBytes, usedBytes, freeBytes },
    });
    gpus.push({
      ...gpu,
      instance,
      uuid,
      parent: gpu.uuid,
      ...(health === 0 ? {} : { health: healthOf(health), healthReason: healthReason(health) }),
      name,
      memory,
      // The driver doesn't measure these for an instance.
      powerWatts: null,
      powerLimitWatts: null,
      utilizationPercent: null,
      computeMode,
      migEnabled: null,
      migInstances: [],
      processes: processesKnown ? processes : null,
    });
  }
  if (count > 1) leaveOutNeighbours(gpu.migInstances, gpus.slice(first));
}

/** Compute instances of one GPU instance share its memory: what the processes of one use is not in use on the others. */
function leaveOutNeighbours(identities: readonly MIGInstance[], instances: readonly GPU[]): void {
  const own = instances.map(({ processes }) =>
    (processes ?? []).reduce((sum, { usedBytes }) => sum + (usedBytes ?? 0), 0),
  );
  instances.forEach(({ memory }, i) => {
    if (memory.usedBytes === null) return;
    const shared = identities[i]?.gpuInstanceId;
    const others = own.filter((_, k) => k !== i && identities[k]?.gpuInstanceId === shared);
    memory.usedBytes = Math.max(
      0,
      others.reduce((left, bytes) => left - bytes, memory.usedBytes),
    );
  });
}

/** Translates a code that is not 0. */
function healthOf(code: number): GPU['health'] {
  switch (code) {
    case NOT_RESPONDING:
      return 'not-responding';
    case 15:
      return 'lost';
    case 16:
      return 'reset-required';
    case 4:
      return 'no-permission';
    default:
      return 'failed';
  }
}

/** Why the memory of a GPU that answers can't be trusted; null: nothing is known against it. @param errors NaN: unknown */
function memoryFault(errors: number, repairFailed: boolean): string | null {
  if (errors > 0)
    return `unhealthy: ${errors} uncorrectable memory ${errors === 1 ? 'error' : 'errors'} (ECC) since its last reset (nvidia-smi --gpu-reset, by an administrator)`;
  return repairFailed
    ? 'unhealthy: faulty memory could not be replaced by spare memory (the GPU needs service)'
    : null;
}

function healthReason(code: number): string {
  switch (code) {
    case NOT_RESPONDING:
      return 'the driver does not answer for this GPU (it may have failed, or is still starting up)';
    case 4:
      return 'no permission to use it (check /dev/nvidia* and the container or job that this runs in)';
    case 15:
      return 'the GPU has fallen off the bus (see dmesg; a reboot may bring it back)';
    case 16:
      return 'the GPU needs a reset (nvidia-smi --gpu-reset, by an administrator)';
    default:
      return `${native().driverCodeText(code)} (NVML code ${code})`;
  }
}
