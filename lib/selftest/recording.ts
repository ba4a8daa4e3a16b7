import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { GPUStatus } from '../claims/index.ts';
import { runProgram } from '../diagnose/index.ts';
import { isWSL, label } from '../gpus/index.ts';
import { fail, skip } from './check.ts';
import type { Context } from './context.ts';

const COMMAND_TIMEOUT_MS = 20_000;
const MiB = 2 ** 20;

/** The machine that `simulate record` describes is this one, as far as that lasts: readings come and go. */
export async function checkRecording({ command, gpus }: Context): Promise<string> {
  let directory: string;
  try {
    directory = mkdtempSync(join(tmpdir(), 'gpu-owner-selftest-'));
  } catch {
    return skip('no file can be written in the directory for temporary files');
  }
  try {
    const file = join(directory, isWSL() ? 'wsl.conf' : 'machine.conf');
    await output([...command, 'simulate', 'record', '--uuids', `--output=${file}`]);
    const real = await output([...command, 'status', '--json']);
    // The simulated driver's libraries, and a state of its own.
    const { GPU_OWNER_NVML_LIBRARY, GPU_OWNER_CUDA_LIBRARY, ...rest } = process.env;
    const simulated = await output([...command, 'status', '--json', `--simulate=${file}`], {
      ...rest,
      GPU_OWNER_SIMULATE_DIR: directory,
    });
    return compare(gpus, JSON.parse(real), JSON.parse(simulated));
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

async function output(words: readonly string[], env?: NodeJS.ProcessEnv): Promise<string> {
  const { code, stdout, stderr } = await runProgram(words, COMMAND_TIMEOUT_MS, env);
  if (code !== 0)
    fail(
      `The machine can't be recorded and simulated: ${stderr.trim().split('\n')[0] || `exit code ${code}`}.`,
    );
  return stdout;
}

function compare(gpus: Context['gpus'], real: readonly GPUStatus[], simulated: readonly GPUStatus[]): string {
  let count = 0;
  const differences = gpus.flatMap(({ uuid, ...gpu }) => {
    const [here, there] = [real, simulated].map((all) => all.find((each) => each.uuid === uuid));
    if (here === undefined || there === undefined) return [`GPU ${label(gpu)} is missing`];
    const [facts, recorded] = [factsOf(here), factsOf(there)];
    return Object.entries(facts).flatMap(([name, value]) => {
      count++;
      const other = recorded[name];
      return other === value ? [] : [`GPU ${label(gpu)}: ${name} is ${value} here, ${other} there`];
    });
  });
  if (differences.length > 0)
    fail(`The machine, recorded and simulated, differs: ${differences.join('; ')}.`);
  return `The machine, recorded and simulated, has the same ${count} values.`;
}

/** Facts that last, and which readings there are. */
function factsOf(gpu: GPUStatus): Readonly<Record<string, unknown>> {
  const { index, instance, name, pciBusId, computeMode, displayActive, migEnabled, memory } = gpu;
  const rounded = (value: number | null, unit: number) => (value === null ? null : Math.round(value / unit));
  return {
    index,
    instance,
    name,
    bus: pciBusId,
    'compute mode': computeMode,
    display: displayActive,
    MIG: migEnabled,
    'memory (MiB)': rounded(memory.totalBytes, MiB),
    'reserved memory': memory.reservedBytes ?? 0,
    'power limit (W)': rounded(gpu.powerLimitWatts, 1),
    'memory in use': tells(memory.usedBytes),
    power: tells(gpu.powerWatts),
    utilization: tells(gpu.utilizationPercent),
    temperature: tells(gpu.temperatureCelsius),
    processes: tells(gpu.processes),
  };
}

function tells(reading: unknown): 'told' | 'not told' {
  return reading === null ? 'not told' : 'told';
}
