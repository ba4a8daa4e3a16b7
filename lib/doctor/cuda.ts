import { findFreeGPUs, LockDirectory, noteCUDA, tryCUDA } from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { cudaCode, explainCudaCode, showCudaCode } from '../gpus/index.ts';
import type { PlaceholderFailure } from '../native.ts';
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
  const attempt = (gpus: Free) => {
    report.step(`trying CUDA on ${list(gpus)}`);
    return tryCUDA(gpus, free).failure;
  };
  const first = free.length === 0 ? null : attempt(free);
  // Other checks tell of a library that can't be used, or lacks functions.
  if (first?.stage === 'load' || first?.code === NOT_FOUND) return;
  const isMachines = first !== null && cudaCode(first.code).blames === 'machine';
  if (first !== null && (isMachines || free.length === 1)) {
    reportFailure(first, free);
    return;
  }
  const works = free.filter((gpu) => {
    const failure = first === null ? null : attempt([gpu]);
    if (failure !== null) reportFailure(failure, [gpu]);
    else if (directory !== null && gpu.suspect !== null) noteCUDA(directory, gpu, null);
    return failure === null;
  });
  if (works.length > 0) report.add('cuda', `CUDA starts on ${list(works)}.`);

  function reportFailure(failure: PlaceholderFailure, gpus: Free): void {
    const { code, stage } = failure;
    const { cause, remedy } = explainCudaCode(code, gpus[0]?.index);
    const where = cudaCode(code).blames === 'machine' ? 'The whole machine' : list(gpus);
    if (directory !== null) for (const gpu of gpus) noteCUDA(directory, gpu, failure);
    if (code === 0) {
      report.add('cuda-failed', `${where}: CUDA did not start in time.`, 'See `dmesg | grep -i nvrm`.');
      return;
    }
    const text = `${where}: CUDA failed with ${showCudaCode(code)} in ${stage}: ${cause}.`;
    report.add('cuda-failed', text, remedy);
  }
}
