import { type DriverDescription, native } from '../native.ts';
import { interrupted, openDriver } from './driver.ts';
import type { GPU, GPUProcess, MIGInstance } from './types.ts';

// The layout of the numbers is native/bindings/driver.cc's.
const HEADER = 2;
const NOT_RESPONDING = -1;
const COMPUTE_MODES = ['default', 'exclusive-thread', 'prohibited', 'exclusive-process'] as const;

let numbers = new Float64Array(1024);
let descriptions: DriverDescription[] = [];
let describedVersion = Number.NaN;

/**
 * What the driver says of every GPU at this moment, in NVML's order. Blocks: microseconds as a rule, one to three seconds
 * per GPU at first where no process keeps the driver awake; a GPU that hangs is given up on within 1.2 s and reported
 * with health 'not-responding'.
 *
 * @param only look at these indices only; what is returned of the others is from the last look at them
 * @throws ERR_NO_DRIVER, ERR_DRIVER; ERR_ABORTED when a signal that the program handles arrived meanwhile
 */
export function lookSync(only?: readonly number[]): GPU[] {
  openDriver();
  const size = native().driverLook(numbers, only);
  if (size < 0) throw interrupted();
  return decode(size);
}

/** As {@link lookSync}, without blocking the event loop. */
export async function look(only?: readonly number[]): Promise<GPU[]> {
  openDriver();
  try {
    await new Promise<void>((resolve) => native().driverLookAsync(resolve, only));
  } catch {
    return lookSync(only); // no thread is to be had (ulimit -u): better late than never
  }
  return decode(native().driverRead(numbers));
}

function decode(size: number): GPU[] {
  if (size > numbers.length) {
    numbers = new Float64Array(2 * size);
    native().driverRead(numbers);
  }
  const version = numbers[0] as number;
  // Names are strings, which are dear to carry over; they are fetched again only when a GPU or an instance is new.
  if (version !== describedVersion) {
    descriptions = native().driverDescribe();
    describedVersion = version;
  }
  const count = numbers[1] as number;
  const gpus: GPU[] = new Array(count);
  let at = HEADER;
  const next = () => numbers[at++] as number;
  const known = (value: number) => (Number.isNaN(value) ? null : value);
  for (let index = 0; index < count; index++) {
    const description = descriptions[index];
    const health = next();
    const memory = {
      totalBytes: known(next()),
      usedBytes: known(next()),
      freeBytes: known(next()),
      reservedBytes: known(next()),
    };
    const power = known(next());
    const powerLimit = known(next());
    const utilizationPercent = known(next());
    const temperatureCelsius = known(next());
    const computeMode = COMPUTE_MODES[next()] ?? null;
    const displayActive = flag(next());
    const migEnabled = flag(next());
    const processesKnown = next() === 1;
    const processCount = next();
    const instanceCount = next();
    const processes: GPUProcess[] = new Array(processCount);
    for (let i = 0; i < processCount; i++) {
      processes[i] = { pid: next(), type: next() === 0 ? 'compute' : 'graphics', usedBytes: known(next()) };
    }
    const migInstances: MIGInstance[] = new Array(instanceCount);
    for (let i = 0; i < instanceCount; i++) {
      const instance = description?.instances[i];
      migInstances[i] = {
        uuid: instance?.uuid ?? '',
        name: instance?.name ?? '',
        gpuInstanceId: next(),
        computeInstanceId: next(),
        memory: { totalBytes: known(next()), usedBytes: known(next()), freeBytes: known(next()) },
      };
    }
    gpus[index] = {
      index,
      uuid: description?.uuid ?? '',
      name: description?.name ?? '',
      pciBusId: description?.pciBusId || null,
      health: healthOf(health),
      healthReason: health === 0 ? null : healthReason(health),
      memory,
      powerWatts: power === null ? null : power / 1000,
      powerLimitWatts: powerLimit === null ? null : powerLimit / 1000,
      utilizationPercent,
      temperatureCelsius,
      computeMode,
      displayActive,
      migEnabled,
      migInstances,
      processes: processesKnown ? processes : null,
    };
  }
  return gpus;
}

function flag(value: number): boolean | null {
  return Number.isNaN(value) ? null : value !== 0;
}

function healthOf(code: number): GPU['health'] {
  switch (code) {
    case 0:
      return 'ok';
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
