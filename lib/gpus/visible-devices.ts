import { GPUOwnerError } from '../errors.ts';
import { sanitize } from '../platform/index.ts';
import { isInstance } from './instances.ts';
import type { GPU, MIGInstance } from './types.ts';

/** What an inherited CUDA_VISIBLE_DEVICES allows. */
export interface VisibleDevices {
  /** UUIDs of whole GPUs, in CUDA's order; null: the variable is not set, all GPUs are visible. */
  uuids: string[] | null;
  /** UUIDs of MIG instances; the GPUs they are parts of are not in `uuids`. */
  migUuids: string[];
  /** Why the value means less than it seems to, for people. */
  note?: string;
}

/** A list that CUDA stops reading, or throws away. */
interface Reading {
  devices: string[];
  note?: string;
}

const VARIABLE = 'CUDA_VISIBLE_DEVICES';

/**
 * What an inherited `CUDA_VISIBLE_DEVICES` allows, read as CUDA reads it: unset = all; empty, '-1' or 'NoDevFiles' =
 * none; the list ends before the first entry that names nothing; a device that is named twice leaves none. The first
 * entry says whether it is a list of numbers, of GPU UUIDs ('GPU-…', any unambiguous beginning) or of MIG instances
 * ('MIG-<uuid>', or 'MIG-GPU-<uuid>/<gi>/<ci>' of older drivers); an entry of another kind ends it.
 *
 * Numbers are read as `strtoul` would, as CUDA does: spaces before and anything after the digits are ignored
 * ('1gpu' is 1), a text without digits ends the list. Spaces around UUIDs are ignored too.
 *
 * Numbers count in CUDA's order, which is the bus order if `order` (CUDA_DEVICE_ORDER) is 'PCI_BUS_ID' or all GPUs
 * are of one model, and fastest first otherwise: then `fastestFirst` is asked, which must give all UUIDs as CUDA orders
 * them without the variable. Where it can't tell (none given, it throws, an incomplete answer), the result is no GPU
 * and a note, as any guess could take somebody else's.
 */
export function resolveVisibleDevices(
  value: string | undefined,
  order: string | undefined,
  gpus: readonly GPU[],
  fastestFirst?: () => readonly string[],
): VisibleDevices {
  if (value === undefined) return { uuids: null, migUuids: [] };
  const entries = value.split(',').map((entry) => entry.trim());
  const first = entries[0] ?? '';
  if (value.trim() === '' || value.trim() === 'NoDevFiles') {
    return {
      uuids: [],
      migUuids: [],
      note: `${VARIABLE} is '${sanitize(value.trim(), 20)}': no GPU is visible`,
    };
  }
  if (/^MIG-/i.test(first)) {
    const { devices, ...note } = readList(entries, (entry) => findInstance(entry, gpus));
    return { uuids: [], migUuids: devices, ...note };
  }
  if (/^GPU-/i.test(first)) {
    const { devices, ...note } = readList(entries, (entry) => findGPU(entry, gpus));
    return { uuids: devices, migUuids: [], ...note };
  }
  const ordinals = ordinalsOf(entries, order, gpus, fastestFirst);
  if (!Array.isArray(ordinals)) {
    return {
      uuids: [],
      migUuids: [],
      note: `which GPUs the numbers in ${VARIABLE} mean is unknown, as their models differ${ordinals.why}: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or use UUIDs`,
    };
  }
  const { devices, ...note } = readList(entries, (entry) => {
    const number = /^\+?(\d+)/.exec(entry)?.[1];
    return (number === undefined ? undefined : ordinals[Number(number)]) ?? null;
  });
  return { uuids: devices, migUuids: [], ...note };
}

function readList(entries: readonly string[], find: (entry: string) => string | null): Reading {
  const devices: string[] = [];
  for (const entry of entries) {
    const uuid = find(entry);
    if (uuid === null) {
      const rest = devices.length === 0 ? 'no GPU is visible' : 'CUDA ignores it and what follows';
      return { devices, note: `${VARIABLE}: '${sanitize(entry, 60)}' names no single GPU, so ${rest}` };
    }
    if (devices.includes(uuid)) {
      return { devices: [], note: `${VARIABLE} names ${uuid} twice, so CUDA sees no GPU at all` };
    }
    devices.push(uuid);
  }
  return { devices };
}

/** GPUs that CUDA can see: it doesn't count those to which the driver gives no access. */
function accessible(gpus: readonly GPU[]): GPU[] {
  return gpus.filter((gpu) => !isHidden(gpu) && !isInstance(gpu)).sort((a, b) => a.index - b.index);
}

function isHidden({ uuid, health }: GPU): boolean {
  return uuid === '' && health === 'no-permission';
}

/** Whether CUDA counts a GPU that hasn't said who it is (it hangs, is lost, or is still starting) can't be known. */
function isUnknown(gpu: GPU): boolean {
  return gpu.uuid === '' && !isHidden(gpu);
}

function ordinalsOf(
  entries: readonly string[],
  order: string | undefined,
  gpus: readonly GPU[],
  fastestFirst: (() => readonly string[]) | undefined,
): string[] | { why: string } {
  const usable = accessible(gpus);
  const unknown = usable.findIndex(isUnknown);
  // What comes behind a GPU that may or may not count has no number.
  const busOrder = (unknown < 0 ? usable : usable.slice(0, unknown)).map(({ uuid }) => uuid);
  if (order?.trim() === 'PCI_BUS_ID') return busOrder;
  if (unknown >= 0) return { why: ` may, and GPU ${usable[unknown]?.index} doesn't answer` };
  if (new Set(usable.map(({ name }) => name)).size <= 1) return busOrder;
  // No need to start CUDA for a list that names nothing.
  if (!/^\+?\d/.test(entries[0] ?? '')) return busOrder;
  let known: readonly string[];
  try {
    known = fastestFirst?.() ?? [];
  } catch (error) {
    return { why: ` and asking CUDA failed (${sanitize(String((error as Error)?.message ?? error))})` };
  }
  return busOrder.every((uuid) => known.includes(uuid)) ? [...known] : { why: '' };
}

function findGPU(entry: string, gpus: readonly GPU[]): string | null {
  const prefix = entry.toLowerCase();
  if (!prefix.startsWith('gpu-')) return null;
  const fitting = gpus.filter(({ uuid }) => uuid !== '' && uuid.toLowerCase().startsWith(prefix));
  return fitting.length === 1 ? (fitting[0]?.uuid ?? null) : null;
}

function findInstance(entry: string, gpus: readonly GPU[]): string | null {
  const older = /^MIG-(GPU-[0-9a-f-]+)\/(\d+)\/(\d+)$/i.exec(entry);
  let fitting: MIGInstance[];
  if (older) {
    const parent = findGPU(older[1] ?? '', gpus);
    fitting = (gpus.find(({ uuid }) => uuid !== '' && uuid === parent)?.migInstances ?? []).filter(
      ({ gpuInstanceId, computeInstanceId }) =>
        gpuInstanceId === Number(older[2]) && computeInstanceId === Number(older[3]),
    );
  } else {
    const prefix = entry.toLowerCase();
    fitting = gpus
      .flatMap(({ migInstances }) => migInstances)
      .filter(({ uuid }) => prefix.startsWith('mig-') && uuid.toLowerCase().startsWith(prefix));
  }
  return fitting.length === 1 ? (fitting[0]?.uuid ?? null) : null;
}

/** Environment variables that show CUDA exactly some GPUs. */
export interface VisibleDevicesVariables {
  CUDA_VISIBLE_DEVICES: string;
  CUDA_DEVICE_ORDER?: 'PCI_BUS_ID';
}

/**
 * The environment that shows CUDA exactly `gpus`, in this order: as UUIDs, or as indices in bus order, together with
 * the CUDA_DEVICE_ORDER that makes them mean that. MIG instances have no other name than their UUID. @param all the whole machine: CUDA doesn't count GPUs without
 * access, NVML does.
 * @throws {GPUOwnerError} ERR_INTERNAL for a GPU without UUID, ERR_DRIVER where numbers are uncertain.
 */
export function formatVisibleDevices(
  gpus: readonly GPU[],
  as: 'uuid' | 'index' = 'uuid',
  all: readonly GPU[] = [],
): VisibleDevicesVariables {
  const unknown = gpus.find(({ uuid }) => uuid === '');
  if (unknown)
    throw new GPUOwnerError('ERR_INTERNAL', `GPU ${unknown.index} has no UUID and can't be shown to CUDA`);
  if (as === 'uuid' || gpus.some(isInstance)) {
    return { CUDA_VISIBLE_DEVICES: gpus.map(({ uuid }) => uuid).join(',') };
  }
  const highest = Math.max(...gpus.map(({ index }) => index));
  const whole = all.filter((gpu) => !isInstance(gpu));
  const doubtful = whole.find((gpu) => isUnknown(gpu) && gpu.index < highest);
  if (doubtful) {
    throw new GPUOwnerError(
      'ERR_DRIVER',
      `as long as GPU ${doubtful.index} doesn't answer, nobody knows how CUDA numbers those behind it: name GPUs by UUID`,
    );
  }
  const skipped = whole.filter(isHidden).map(({ index }) => index);
  const ordinals = gpus.map(({ index }) => index - skipped.filter((other) => other < index).length);
  return { CUDA_VISIBLE_DEVICES: ordinals.join(','), CUDA_DEVICE_ORDER: 'PCI_BUS_ID' };
}
