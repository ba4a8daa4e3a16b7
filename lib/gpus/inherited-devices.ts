import { driverLibraries } from '../config/index.ts';
import { nativeFile } from '../native.ts';
import { warnOnce } from '../platform/index.ts';
import type { GPU } from './types.ts';
import { resolveVisibleDevices } from './visible-devices.ts';

interface Variables {
  CUDA_VISIBLE_DEVICES: string | undefined;
  CUDA_DEVICE_ORDER: string | undefined;
}

let override: Variables | null = null;

/** What the variables were before this process set them; null: they are as they were. */
export function rememberInherited(variables: Variables | null): void {
  override = variables;
}

/** The UUIDs that the CUDA_VISIBLE_DEVICES allows with which this process was started; null: it isn't set, all. */
export function inheritedDevices(gpus: readonly GPU[]): ReadonlySet<string> | null {
  const { CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER } = override ?? process.env;
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
  const { CUDA_VISIBLE_DEVICES = '' } = override ?? process.env;
  const names = CUDA_VISIBLE_DEVICES.split(',');
  return names.every((name) => WHOLE_UUID.test(name)) ? new Set(names) : inheritedDevices(gpus);
}

const WHOLE_UUID = /^(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/**
 * How CUDA orders all GPUs, with the CUDA_DEVICE_ORDER with which this process was started and without CUDA_VISIBLE_DEVICES;
 * or why nobody knows. Where models differ, asking takes a second or more.
 */
export function cudaOrder(gpus: readonly GPU[]): { uuids: readonly string[] } | { why: string } {
  const { CUDA_DEVICE_ORDER } = override ?? process.env;
  const all = gpus.map((_, number) => number).join(',');
  const { uuids, note } = resolveVisibleDevices(all, CUDA_DEVICE_ORDER, gpus, fastestFirst);
  return uuids === null || uuids.length === 0 ? { why: note ?? 'there are none' } : { uuids };
}

/** Whether {@link cudaOrder} needn't ask CUDA. */
export function hasBusOrder(gpus: readonly GPU[]): boolean {
  const { CUDA_DEVICE_ORDER } = override ?? process.env;
  return CUDA_DEVICE_ORDER?.trim() === 'PCI_BUS_ID' || new Set(gpus.map(({ name }) => name)).size <= 1;
}

const CUDA_PATIENCE = 20_000;

/** Only CUDA knows which of different models it calls the fastest; asked in a process of its own, as it binds that. */
function fastestFirst(): string[] {
  const { spawnSync } = process.getBuiltinModule('node:child_process'); // rarely needed, so not loaded before
  const { cuda } = driverLibraries();
  const { CUDA_VISIBLE_DEVICES: _, CUDA_DEVICE_ORDER: __, ...env } = process.env;
  const args = ['--list', ...(cuda ? ['--cuda', cuda] : [])];
  const { stdout, error } = spawnSync(nativeFile('gpu-owner-placeholder'), args, {
    env,
    encoding: 'utf8',
    timeout: CUDA_PATIENCE,
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  if (error) throw error;
  return stdout.split('\n').filter((line) => line.startsWith('GPU-'));
}
