import { join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import { nativeFile } from '../native.ts';

/**
 * The simulated machine that was asked for with `GPU_OWNER_SIMULATE` (or `--simulate`), or null: then the real driver is
 * used. Never a silent fallback.
 */
export function simulatedMachine(env: NodeJS.ProcessEnv = process.env): string | null {
  const machine = env.GPU_OWNER_SIMULATE;
  if (machine === undefined || machine === '') return null;
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(machine) || machine.startsWith('.')) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `GPU_OWNER_SIMULATE is ${JSON.stringify(machine)}: give a number of GPUs (4) or the name of a machine ` +
        '(`gpu-owner simulate machines` lists them).',
    );
  }
  return machine;
}

// A claim asks some fifty times, and the first calls of a function, `join` too, are slow.
let asked = { base: '', machine: '', directory: '' };

/** Where a simulated machine keeps its state; its lock directory is `locks` in there. */
export function simulationDirectory(machine: string, env: NodeJS.ProcessEnv = process.env): string {
  const base =
    env.GPU_OWNER_SIMULATE_DIR ||
    join(
      process.getBuiltinModule('node:os').tmpdir(),
      `gpu-owner-simulated-${process.geteuid?.() ?? 'user'}`,
    );
  if (base !== asked.base || machine !== asked.machine) {
    asked = { base, machine, directory: join(base, machine) };
  }
  return asked.directory;
}

/** Paths of the driver's libraries: explicit ones, the simulated ones, or '' for the usual search. */
export function driverLibraries(env: NodeJS.ProcessEnv = process.env): { nvml: string; cuda: string } {
  const simulated = simulatedMachine(env) !== null;
  return {
    nvml: env.GPU_OWNER_NVML_LIBRARY || (simulated ? nativeFile('simulator/libnvidia-ml.so.1') : ''),
    cuda: env.GPU_OWNER_CUDA_LIBRARY || (simulated ? nativeFile('simulator/libcuda.so.1') : ''),
  };
}
