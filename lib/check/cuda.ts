import { LockDirectory, noteCUDA, tryCUDA, tryEach } from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { CUDA_HANGS, cudaCode, cudaFailed, explainCudaCode } from '../gpus/index.ts';
import type { PlaceholderFailure } from '../native.ts';
import { findFreeGPUs } from '../status/index.ts';
import type { Report } from './finding.ts';
import { list } from './gpus.ts';

/**
 * Tries CUDA on the GPUs that are free, in another process: NVML may answer where CUDA fails. Failures are noted as by a claim, and
 * suspect GPUs that work again, too.
 */
export async function checkCUDA(report: Report): Promise<void> {
  try {
    const free = await findFreeGPUs();
    tryFree(report, free, LockDirectory.find(undefined, loadConfiguration()));
  } catch (error) {
    // Other checks tell of the driver, the configuration and the lock directory.
    if (!(error instanceof GPUOwnerError)) throw error;
  }
}

/** CUDA_ERROR_NOT_FOUND */
const NOT_FOUND = 500;

type Free = Awaited<ReturnType<typeof findFreeGPUs>>;

function tryFree(report: Report, free: Free, directory: LockDirectory | null): void {
  if (free.length === 0) return;
  report.step(`trying CUDA on ${list(free)}`);
  const first = tryCUDA(free, free).failure;
  // Other checks tell of a library that can't be used, or lacks functions.
  if (first?.stage === 'load' || first?.code === NOT_FOUND) return;
  const isMachines = first !== null && cudaCode(first.code).blames === 'machine';
  if (first !== null && (isMachines || free.length === 1)) {
    reportFailure(first, free, isMachines);
    return;
  }
  if (first !== null) report.step(`trying CUDA on each of ${list(free)}`);
  const failures = first === null ? new Map<Free[number], PlaceholderFailure>() : tryEach(free, free);
  // If CUDA answers on none of several GPUs, none of them can be blamed.
  if (free.every((gpu) => failures.get(gpu)?.code === CUDA_HANGS) && first !== null) {
    reportFailure(first, free, true);
    return;
  }
  for (const [gpu, failure] of failures) reportFailure(failure, [gpu], false);
  const works = free.filter((gpu) => !failures.has(gpu));
  if (directory !== null) for (const gpu of works) if (gpu.suspect !== null) noteCUDA(directory, gpu, null);
  if (works.length > 0) report.add('cuda', `CUDA starts on ${list(works)}.`);

  function reportFailure(failure: PlaceholderFailure, gpus: Free, isWholeMachine: boolean): void {
    const { code, stage } = failure;
    const { cause, remedy } = explainCudaCode(code, gpus[0]?.index);
    const where = isWholeMachine ? 'The whole machine' : list(gpus);
    if (directory !== null && !isWholeMachine) for (const gpu of gpus) noteCUDA(directory, gpu, failure);
    if (code === 0) {
      report.add('cuda-failed', `${where}: CUDA did not start.`, 'See `dmesg | grep -i nvrm`.');
      return;
    }
    report.add('cuda-failed', `${where}: ${cudaFailed(code, stage)}: ${cause}.`, remedy);
  }
}
