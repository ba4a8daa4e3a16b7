import { driverLibraries } from '../config/index.ts';
import { errorMessage, GPUOwnerError } from '../errors.ts';
import { nativeFile } from '../native.ts';
import { sanitize, setVariables, warnOnce } from '../platform/index.ts';
import type { Readings } from '../shapes/index.ts';
import { isInstance } from './selection.ts';
import type { GPU, MIGInstance } from './types.ts';

/** The GPUs that an inherited CUDA_VISIBLE_DEVICES allows. */
interface VisibleDevices {
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
 * Resolves an inherited `CUDA_VISIBLE_DEVICES`, read as CUDA reads it: unset = all; empty, '-1' or 'NoDevFiles' =
 * none; the list ends before the first entry that names nothing; a device that is named twice leaves none. The first
 * entry says whether it is a list of numbers, of GPU UUIDs ('GPU-…', any unambiguous beginning) or of MIG instances
 * ('MIG-<uuid>', or 'MIG-GPU-<uuid>/<gi>/<ci>' of older drivers); an entry of another kind ends it.
 *
 * Numbers are read as `strtoul` would, as CUDA does: spaces before and anything after the digits are ignored
 * ('1gpu' is 1), a text without digits ends the list. Spaces around UUIDs are ignored too.
 *
 * Numbers count in CUDA's order, which is the bus order if `order` (CUDA_DEVICE_ORDER) is 'PCI_BUS_ID' or all GPUs are of one
 * model, and fastest first otherwise: then `fastestFirst` is asked, which must give all UUIDs as CUDA orders them without the
 * variable. Where it can't tell (none given, it throws, an incomplete answer), the result is no GPU and a note, as a guess
 * could take the GPU of another user.
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
  // GPUs after one that may or may not count have no number.
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
    return { why: ` and asking CUDA failed (${sanitize(errorMessage(error))})` };
  }
  const ordered = known.map((name) => busOrder.find((uuid) => name === `GPU-${uuid}`) ?? name);
  return busOrder.every((uuid) => ordered.includes(uuid)) ? ordered : { why: '' };
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
 * the CUDA_DEVICE_ORDER that makes them mean that. MIG instances have no other name than their UUID; GPUs of a Jetson have
 * UUIDs without 'GPU-', which CUDA doesn't read, so they are always named by index. @param all the whole machine: CUDA doesn't count GPUs without
 * access, NVML does.
 * @throws {GPUOwnerError} ERR_INTERNAL for a GPU without UUID, ERR_DRIVER where numbers are uncertain.
 */
export function formatVisibleDevices(
  gpus: readonly Readings[],
  as: 'uuid' | 'index' = 'uuid',
  all: readonly GPU[] = [],
): VisibleDevicesVariables {
  const unknown = gpus.find(({ uuid }) => uuid === '');
  if (unknown)
    throw new GPUOwnerError('ERR_INTERNAL', `GPU ${unknown.index} has no UUID and can't be shown to CUDA`);
  if ((as === 'uuid' && gpus.every(({ uuid }) => IS_CUDA_NAME.test(uuid))) || gpus.some(isInstance)) {
    return { CUDA_VISIBLE_DEVICES: gpus.map(({ uuid }) => uuid).join(',') };
  }
  const highest = Math.max(...gpus.map(({ index }) => index));
  const whole = all.filter((gpu) => !isInstance(gpu));
  const doubtful = whole.find((gpu) => isUnknown(gpu) && gpu.index < highest);
  if (doubtful) {
    throw new GPUOwnerError(
      'ERR_DRIVER',
      `as long as GPU ${doubtful.index} doesn't answer, it is unknown how CUDA numbers the GPUs after it: name GPUs by UUID`,
    );
  }
  const skipped = whole.filter(isHidden).map(({ index }) => index);
  const ordinals = gpus.map(({ index }) => index - skipped.filter((other) => other < index).length);
  return { CUDA_VISIBLE_DEVICES: ordinals.join(','), CUDA_DEVICE_ORDER: 'PCI_BUS_ID' };
}

/** Prefixes of the UUIDs that CUDA reads. */
const IS_CUDA_NAME = /^(?:GPU|MIG)-/;

type Name = 'CUDA_VISIBLE_DEVICES' | 'CUDA_DEVICE_ORDER';
type Variables = Record<Name, string | undefined>;

/** GPUs that one owner shows to CUDA in this process. */
export interface ShownGPUs {
  gpus: readonly GPU[];
  /** All GPUs of the machine, to count indices as CUDA does. */
  all: readonly GPU[];
  as: 'uuid' | 'index';
}

// One process has one environment, so this state is the process's.
const shown: ShownGPUs[] = [];
/** The variables as they were before this process set them; null: they are as they were. */
let inherited: Variables | null = null;
/** The variables as this process has set them. */
let applied: Variables | null = null;

/** The UUIDs that the CUDA_VISIBLE_DEVICES allows with which this process was started; null: it isn't set, all. */
export function inheritedDevices(gpus: readonly GPU[]): ReadonlySet<string> | null {
  const { CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER } = inherited ?? process.env;
  const { uuids, migUuids, note } = resolveVisibleDevices(
    CUDA_VISIBLE_DEVICES,
    CUDA_DEVICE_ORDER,
    gpus,
    fastestFirst,
  );
  if (note !== undefined) warnOnce(note);
  return uuids === null ? null : new Set([...uuids, ...migUuids]);
}

/**
 * As {@link inheritedDevices} for GPUs that are certain to have been claimed: where the variable lists whole UUIDs, one that
 * has failed since and tells its own no longer doesn't end the list, as it would in CUDA.
 */
export function inheritedClaim(gpus: readonly GPU[]): ReadonlySet<string> | null {
  const { CUDA_VISIBLE_DEVICES = '' } = inherited ?? process.env;
  const names = CUDA_VISIBLE_DEVICES.split(',');
  return names.every((name) => WHOLE_UUID.test(name)) ? new Set(names) : inheritedDevices(gpus);
}

const WHOLE_UUID = /^(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/**
 * How CUDA orders all GPUs, with the CUDA_DEVICE_ORDER with which this process was started and without CUDA_VISIBLE_DEVICES; or
 * why the order isn't known. Where models differ, asking takes a second or more.
 */
export function cudaOrder(gpus: readonly GPU[]): { uuids: readonly string[] } | { why: string } {
  const { CUDA_DEVICE_ORDER } = inherited ?? process.env;
  const all = gpus.map((_, number) => number).join(',');
  const { uuids, note } = resolveVisibleDevices(all, CUDA_DEVICE_ORDER, gpus, fastestFirst);
  return uuids === null || uuids.length === 0 ? { why: note ?? 'there are none' } : { uuids };
}

/** Whether {@link cudaOrder} needn't ask CUDA. */
export function isBusOrder(gpus: readonly GPU[]): boolean {
  const { CUDA_DEVICE_ORDER } = inherited ?? process.env;
  return CUDA_DEVICE_ORDER?.trim() === 'PCI_BUS_ID' || new Set(gpus.map(({ name }) => name)).size <= 1;
}

const CUDA_TIMEOUT_MS = 20_000;

/** Only CUDA knows which of different models it calls the fastest; asked in a process of its own, as it binds that. */
function fastestFirst(): string[] {
  const { spawnSync } = process.getBuiltinModule('node:child_process'); // rarely needed, so not loaded before
  const { cuda } = driverLibraries();
  const { CUDA_VISIBLE_DEVICES: _, CUDA_DEVICE_ORDER: __, ...env } = process.env;
  const args = ['--list', ...(cuda ? ['--cuda', cuda] : [])];
  const { stdout, error } = spawnSync(nativeFile('gpu-owner-placeholder'), args, {
    env,
    encoding: 'utf8',
    timeout: CUDA_TIMEOUT_MS,
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  if (error) throw error;
  return stdout.split('\n').filter((line) => line.startsWith('GPU-'));
}

/** Shows CUDA the GPUs of one more owner: the variables name the union of all owners' GPUs, in the order of their claims. */
export function applyEnvironment(added: ShownGPUs): string {
  if (shown.length === 0) inherited = readVariables();
  shown.push(added);
  update(added);
  return process.env.CUDA_VISIBLE_DEVICES ?? '';
}

/** Undoes {@link applyEnvironment}. The last owner restores the inherited values, unless other code has changed them since. */
export function restoreEnvironment(removed: ShownGPUs): void {
  const at = shown.indexOf(removed);
  if (at < 0) return;
  shown.splice(at, 1);
  const current = readVariables();
  const isOurs =
    applied !== null &&
    current.CUDA_VISIBLE_DEVICES === applied.CUDA_VISIBLE_DEVICES &&
    current.CUDA_DEVICE_ORDER === applied.CUDA_DEVICE_ORDER;
  const latest = shown.at(-1);
  if (latest !== undefined) {
    if (isOurs) update(latest);
    return;
  }
  if (isOurs && inherited !== null) writeVariables(inherited);
  inherited = applied = null;
}

function update(latest: ShownGPUs): void {
  const seen = new Set<string>();
  const union = shown.flatMap(({ gpus }) => gpus).filter(({ uuid }) => !seen.has(uuid) && seen.add(uuid));
  const variables = formatVisibleDevices(union, latest.as, latest.all);
  applied = {
    CUDA_VISIBLE_DEVICES: variables.CUDA_VISIBLE_DEVICES,
    CUDA_DEVICE_ORDER: variables.CUDA_DEVICE_ORDER ?? inherited?.CUDA_DEVICE_ORDER,
  };
  writeVariables(applied);
}

function readVariables(): Variables {
  const { CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER } = process.env;
  return { CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER };
}

function writeVariables(variables: Variables): void {
  const { CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER } = variables;
  setVariables({ CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER });
}
