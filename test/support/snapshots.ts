import { expect } from 'vitest';
import { type Criteria, normalizeCriteria } from '../../lib/config/index.ts';
import { type ErrorCode, GPUOwnerError } from '../../lib/errors.ts';
import { byPlace, checkDevices, selects } from '../../lib/gpus/selection.ts';
import type { GPU, LeaseInfo } from '../../lib/gpus/types.ts';

export const MIB = 1024 ** 2;
export const GIB = 1024 ** 3;

/** An idle GPU of 80 GiB with all values known; `changes` win, `memory` is merged. */
export function makeGPU(
  index = 0,
  changes: Partial<Omit<GPU, 'memory'>> & { memory?: Partial<GPU['memory']> } = {},
): GPU {
  const { memory, ...rest } = changes;
  return {
    index,
    instance: null,
    parent: null,
    uuid: `GPU-${String(index).repeat(8)}-aaaa-4bbb-8ccc-00000000000${index}`,
    name: 'NVIDIA A100-SXM4-80GB',
    pciBusId: `00000000:0${index}:00.0`,
    health: 'ok',
    healthReason: null,
    memory: {
      totalBytes: 80 * GIB,
      usedBytes: 4 * MIB,
      freeBytes: 80 * GIB - 4 * MIB,
      reservedBytes: 600 * MIB,
      ...memory,
    },
    powerWatts: 60,
    powerLimitWatts: 400,
    utilizationPercent: 0,
    temperatureCelsius: 30,
    memoryRepairPending: null,
    computeMode: 'default',
    displayActive: false,
    migEnabled: false,
    migInstances: [],
    processes: [],
    ...rest,
  };
}

/** A GPU with so much memory in use. */
export function usedGPU(usedBytes: number, changes: Partial<GPU> = {}): GPU {
  return makeGPU(0, { ...changes, memory: { usedBytes, freeBytes: 80 * GIB - usedBytes } });
}

export function makeLease(changes: Partial<LeaseInfo> = {}): LeaseInfo {
  return {
    user: 'alice',
    uid: 1000,
    pid: 4242,
    host: 'gpubox',
    command: 'python train.py',
    since: null,
    convention: 'gpu-owner',
    ...changes,
  };
}

export function refusal(run: () => unknown, code: ErrorCode = 'ERR_INVALID_ARGUMENT'): string {
  let result: unknown;
  try {
    result = run();
  } catch (error) {
    expect(error).toBeInstanceOf(GPUOwnerError);
    expect((error as GPUOwnerError).code).toBe(code);
    return (error as GPUOwnerError).message;
  }
  return expect.unreachable(`accepted: ${JSON.stringify(result)}`);
}

/** The GPUs that a call names, by index. @throws ERR_INVALID_ARGUMENT as for `devices` */
export function namedBy(devices: Criteria['devices'], gpus: readonly GPU[], option = 'devices'): GPU[] {
  const criteria = normalizeCriteria({ devices }, { names: { devices: option } });
  checkDevices(criteria, gpus);
  const selectors = criteria.devices.flatMap((rule) => rule.selectors);
  return gpus.filter((gpu) => selectors.some((selector) => selects(selector, gpu))).sort(byPlace);
}
