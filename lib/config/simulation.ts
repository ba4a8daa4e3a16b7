import { readFileSync, statSync } from 'node:fs';
import { join, parse, resolve } from 'node:path';
import { errorCode, GPUOwnerError } from '../errors.ts';
import { nativeFile } from '../native.ts';
import { fnv1a, prepend, showValue, usageError } from '../platform/index.ts';

/**
 * The name of the simulated machine that was asked for with `GPU_OWNER_SIMULATE` (or `--simulate`), or null: then the real
 * driver is used. Never a silent fallback.
 */
export function simulatedMachine(env: NodeJS.ProcessEnv = process.env): string | null {
  const machine = env.GPU_OWNER_SIMULATE;
  if (machine === undefined || machine === '') return null;
  if (machine.includes('/')) return nameOfFile(machine);
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(machine) || machine.startsWith('.')) {
    throw usageError(
      `${showValue(machine)} is not a simulated machine: give a number of GPUs (4), the name of a machine ` +
        '(`gpu-owner simulate machines` lists them) or the path of a file (./server.conf).',
    );
  }
  return machine;
}

/** A process keeps its first machine, even if the file changes. */
const files = new Map<string, string>();

/** The name of the machine that a file describes, as simulator/machine_file.cc makes it: also of the contents. */
function nameOfFile(path: string): string {
  const known = files.get(path);
  if (known !== undefined) return known;
  let contents: Buffer;
  try {
    contents = statSync(path).isFile() ? readFileSync(path) : Buffer.alloc(0);
  } catch (error) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `the simulated machine ${showValue(path)} can't be read (${errorCode(error)}): name a file ` +
        'that describes a machine; `gpu-owner simulate record` writes one.',
      { cause: error },
    );
  }
  const base = Buffer.from(parse(path).name).toString('latin1').slice(0, 47);
  const name = `${base.replace(/^\.|[^A-Za-z0-9_.]/g, '-')}-${fnv1a(contents)}`;
  files.set(path, name);
  return name;
}

/** Where a simulated machine keeps its state; its lock directory is `locks` in there. */
export function simulationDirectory(machine: string, env: NodeJS.ProcessEnv = process.env): string {
  const base =
    env.GPU_OWNER_SIMULATE_DIR ||
    join(
      process.getBuiltinModule('node:os').tmpdir(),
      `gpu-owner-simulated-${process.geteuid?.() ?? 'user'}`,
    );
  return join(base, machine);
}

/** Paths of the driver's libraries: explicit ones, the simulated ones, or '' for the usual search. */
export function driverLibraries(env: NodeJS.ProcessEnv = process.env): { nvml: string; cuda: string } {
  const simulated = simulatedMachine(env) !== null;
  return {
    nvml: env.GPU_OWNER_NVML_LIBRARY || (simulated ? nativeFile('simulator/libnvidia-ml.so.1') : ''),
    cuda: env.GPU_OWNER_CUDA_LIBRARY || (simulated ? nativeFile('simulator/libcuda.so.1') : ''),
  };
}

/** On a simulated machine, a command finds the driver's libraries and `nvidia-smi` as it would find the real ones. */
export function simulatedVariables(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const { LD_LIBRARY_PATH, PATH, GPU_OWNER_SIMULATE: machine } = env;
  if (simulatedMachine() === null) return {};
  const simulator = nativeFile('simulator');
  return {
    LD_LIBRARY_PATH: LD_LIBRARY_PATH ? prepend(simulator, LD_LIBRARY_PATH) : simulator,
    // Without a PATH, programs are looked for in the system's directories.
    ...(PATH && { PATH: prepend(`${simulator}/bin`, PATH) }),
    // Commands may start in another directory.
    ...(machine?.includes('/') && { GPU_OWNER_SIMULATE: resolve(machine) }),
  };
}
