import { realpathSync } from 'node:fs';
import { snapshotAfterStartup } from '../claims/index.ts';
import { driverLibraries } from '../config/index.ts';
import { GPUOwnerError, ifPossible } from '../errors.ts';
import {
  cudaVersion,
  type GPU,
  isMissingLibrary,
  librarySetting,
  openDriver,
  triedLibraries,
} from '../gpus/index.ts';
import { type LibraryAttempt, native } from '../native.ts';
import { describeProcess, listWords } from '../platform/index.ts';
import { reportRules } from './configuration.ts';
import type { Report } from './finding.ts';
import { reportGPUs } from './gpus.ts';
import { sentences } from './installation.ts';

/** The driver's libraries, and through them the GPUs. */
export async function checkDriver(report: Report): Promise<void> {
  report.step('starting the NVIDIA driver');
  try {
    openDriver();
  } catch (error) {
    if (!(error instanceof GPUOwnerError) || error.code === 'ERR_UNSUPPORTED_PLATFORM') throw error;
    reportFailure(report, error);
    return;
  }
  const library = native().driverLibrary();
  const file = realPath(library.path);
  report.add('driver', `NVIDIA driver ${library.version || 'of an unknown version'}, ${file}.`);
  const gpus = await snapshotAfterStartup(() => report.step('looking at the GPUs'));
  reportGPUs(
    report,
    gpus.filter(isWhole),
    native()
      .driverDescribe()
      .map(({ persistence }) => persistence),
    describeProcess,
  );
  reportRules(report, gpus);
  report.step('loading the CUDA library');
  reportCUDA(report);
}

/** Instances of MIG are told with the GPU that they are parts of. */
function isWhole(gpu: GPU): boolean {
  return !('parent' in gpu) || gpu.parent === null;
}

function reportFailure(report: Report, error: GPUOwnerError): void {
  if (error.code === 'ERR_NO_DRIVER') {
    report.add(
      'driver-missing',
      `No NVIDIA driver: its library could be loaded from none of ${places(triedLibraries())}.`,
      `Install the driver, or reinstall it if its library is damaged (\`nvidia-smi\` should work); start a container with \`--gpus all\`; ${librarySetting('GPU_OWNER_NVML_LIBRARY')}.`,
    );
    return;
  }
  const { text, remedy } = sentences(error.message);
  report.add('driver-failed', text, remedy ?? '`nvidia-smi` and `dmesg` may say more.');
}

/** "/usr/lib64/x.so.1 or /opt/x.so.1 (it is cut off)" */
function places(attempts: readonly LibraryAttempt[]): string {
  const words = attempts.map((attempt) =>
    isMissingLibrary(attempt) ? attempt.path : `${attempt.path} (${attempt.error})`,
  );
  return listWords(words, 'or');
}

function reportCUDA(report: Report): void {
  const { path, missing, version, attempts } = native().cudaLibrary(driverLibraries().cuda);
  if (path === '') {
    report.add(
      'cuda-library-missing',
      `No CUDA: libcuda.so.1, a part of the driver, could be loaded from none of ${places(attempts)}. No CUDA program can run here, and claims can't keep their GPUs visibly taken.`,
      `In a container, start it with \`-e NVIDIA_DRIVER_CAPABILITIES=compute,utility\`; elsewhere install the complete driver; ${librarySetting('GPU_OWNER_CUDA_LIBRARY')}.`,
    );
    return;
  }
  const file = realPath(path);
  if (missing !== '') {
    report.add(
      'cuda-library-broken',
      `${file} lacks ${missing}: it isn't the driver's CUDA library, or it is a stub.`,
      'Remove directories named `stubs` from LD_LIBRARY_PATH, or set GPU_OWNER_CUDA_LIBRARY to the real one.',
    );
    return;
  }
  const newest = cudaVersion(version);
  report.add('cuda-library', `${newest === null ? '' : `CUDA ${newest}, `}${file}.`);
}

/** The file behind the links: it has the version in its name. */
function realPath(path: string): string {
  return ifPossible(() => realpathSync(path), path || 'from an unknown place');
}
