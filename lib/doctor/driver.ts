import { readdirSync, realpathSync } from 'node:fs';
import { snapshotAfterStartup } from '../claims/index.ts';
import { driverLibraries, simulatedMachine } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import {
  cudaVersion,
  type GPU,
  inheritedDevices,
  isMissingLibrary,
  librarySetting,
  openDriver,
  triedLibraries,
} from '../gpus/index.ts';
import { EXCLUSIVE, type LibraryAttempt, native, OFD } from '../native.ts';
import { describeProcess, listWords, onWarning, pathIn } from '../platform/index.ts';
import type { Report } from './finding.ts';
import { list, reportGPUs } from './gpus.ts';
import { sentences } from './installation.ts';

/** The driver's libraries, and through them the GPUs. */
export async function checkDriver(report: Report): Promise<void> {
  const before = deviceNodes();
  report.step('starting the NVIDIA driver');
  try {
    openDriver();
  } catch (error) {
    if (!(error instanceof GPUOwnerError) || error.code === 'ERR_UNSUPPORTED_PLATFORM') throw error;
    reportFailure(report, error);
    return;
  } finally {
    reportDeviceNodes(report, before);
  }
  const library = native().driverLibrary();
  const file = realPath(library.path);
  report.add('driver', `NVIDIA driver ${library.version || 'of an unknown version'}, ${file}.`);
  const gpus = await snapshotAfterStartup(() => report.step('looking at the GPUs'));
  report.tell({ gpus });
  reportGPUs(
    report,
    gpus.filter(isWhole),
    native()
      .driverDescribe()
      .map(({ persistence }) => persistence),
    describeProcess,
  );
  reportMPS(report, gpus.filter(isWhole));
  report.step('loading the CUDA library');
  reportCUDA(report, library.version);
  report.step('asking CUDA which GPUs CUDA_VISIBLE_DEVICES means');
  let visibleNote = '';
  onWarning((message) => {
    visibleNote = message;
  });
  const visible = inheritedDevices(gpus);
  report.tell({ visible: visible === null ? null : [...visible], visibleNote });
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

/** The driver's files in /dev. */
function deviceNodes(): string[] {
  return readdirSync('/dev').filter((name) => name.startsWith('nvidia'));
}

/** When root starts it, NVML makes device nodes that are missing, also where there is no driver. */
function reportDeviceNodes(report: Report, before: readonly string[]): void {
  const made = deviceNodes().filter((name) => !before.includes(name));
  if (made.length === 0) return;
  report.add(
    'device-nodes-made',
    `The NVIDIA driver library made ${listWords(made.map((name) => `/dev/${name}`))} when it was started, as it does in every program that root runs.`,
  );
}

function reportCUDA(report: Report, driverVersion: string): void {
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
  // As `libcuda.so.570.86.15` has it; WSL's has another.
  const [, of] = /\.so\.(\d{3}\.\d+(?:\.\d+)?)$/.exec(file) ?? [];
  if (of !== undefined && driverVersion !== '' && of !== driverVersion) {
    report.add(
      'cuda-library-version',
      `${file} isn't of the driver's version, ${driverVersion}: NVIDIA's package for newer CUDA on older drivers (cuda-compat), or left from an update.`,
      'If CUDA programs fail, remove that library, or remove its directory from LD_LIBRARY_PATH.',
    );
  }
}

/** As much of the server's name as the kernel keeps. */
const MPS = 'nvidia-cuda-mps';

/** A server of MPS is on each of its GPUs, in everybody's name; its control daemon is on none. */
function reportMPS(report: Report, gpus: readonly GPU[]): void {
  const pids = [...new Set(gpus.flatMap(({ processes }) => (processes ?? []).map(({ pid }) => pid)))];
  const servers = pids.filter((pid) => describeProcess(pid).name?.startsWith(MPS));
  const served = gpus.filter(({ processes }) => processes?.some(({ pid }) => servers.includes(pid)));
  const pipes = process.env.CUDA_MPS_PIPE_DIRECTORY || (simulatedMachine() === null ? '/tmp/nvidia-mps' : '');
  if (servers.length === 0 && (pipes === '' || !hasControlDaemon(pipes))) return;
  const who =
    servers.length === 0
      ? `its control daemon has its pipe in ${pipes}`
      : `its server (pid ${listWords(servers.map(String))}) is on ${list(served)}`;
  report.add(
    'mps',
    `MPS, which lets several processes share a GPU, is running: ${who}. Programs that compute through it make a GPU busy; its server alone doesn't.`,
    'To share GPUs through it, claim with `--allow-processes`. To end it: `echo quit | nvidia-cuda-mps-control`.',
  );
}

/** The daemon locks this file as long as it lives; the file itself, and its sockets, stay when it ends. */
function hasControlDaemon(pipes: string): boolean {
  const descriptor = native().fileOpenForProbe(pathIn(pipes, 'control_lock'));
  if (descriptor < 0) return false;
  const isLocked = native().lockProbe(descriptor, OFD, EXCLUSIVE, 0, 0) >= 0;
  native().fileClose(descriptor);
  return isLocked;
}

/** The file behind the links: it has the version in its name. */
function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return path || 'from an unknown place';
  }
}
