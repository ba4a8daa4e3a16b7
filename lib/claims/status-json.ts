import type { GPUStatus } from './discovery.ts';

/** A GPU as `status --json` has it: scripts depend on these names. Unknown values are null. */
export function gpuJSON(gpu: GPUStatus) {
  return {
    index: gpu.index,
    instance: gpu.instance,
    uuid: gpu.uuid,
    parent: gpu.parent,
    name: gpu.name,
    pciBusId: gpu.pciBusId,
    // To a script, what may not be had is unavailable, for whichever reason.
    state: gpu.state === 'excluded' ? 'unavailable' : gpu.state,
    reason: gpu.reason,
    memory: {
      totalBytes: gpu.memory.totalBytes,
      usedBytes: gpu.memory.usedBytes,
      freeBytes: gpu.memory.freeBytes,
      reservedBytes: gpu.memory.reservedBytes,
    },
    powerWatts: gpu.powerWatts,
    powerLimitWatts: gpu.powerLimitWatts,
    utilizationPercent: gpu.utilizationPercent,
    temperatureCelsius: gpu.temperatureCelsius,
    computeMode: gpu.computeMode,
    displayActive: gpu.displayActive,
    migEnabled: gpu.migEnabled,
    migInstances: gpu.migInstances,
    processes: gpu.processes,
    lease: gpu.lease,
  };
}
