import { realpathSync } from 'node:fs';
import {
  LockDirectory,
  noteCUDA,
  placeholderError,
  snapshotAfterStartup,
  tryCUDA,
  tryEach,
} from '../claims/index.ts';
import { driverLibraries, loadConfiguration } from '../config/index.ts';
import { ifPossible } from '../errors.ts';
import {
  CUDA_HANGS,
  cudaCode,
  cudaFailed,
  cudaVersion,
  explainCudaCode,
  type GPU,
  label,
  openDriver,
  resetOf,
} from '../gpus/index.ts';
import { native, type PlaceholderFailure } from '../native.ts';
import { listWords } from '../platform/index.ts';
import { findFreeGPUs } from '../status/index.ts';
import type { Report } from './finding.ts';

/** The driver starts within 30 s, or not at all; then there is a step after each GPU that has started. */
const DRIVER_TIMEOUT_MS = 35_000;

/** The driver's libraries, and through them the GPUs. */
export async function checkGPUs(report: Report): Promise<void> {
  report.step('starting the NVIDIA driver', DRIVER_TIMEOUT_MS);
  openDriver();
  const library = native().driverLibrary();
  const cuda = native().cudaLibrary(driverLibraries().cuda);
  const newest = cudaVersion(cuda.version);
  const libraries = [library.path, cuda.path].filter((path) => path !== '').map(realPath);
  report.add(
    'driver',
    `NVIDIA driver ${library.version || 'of an unknown version'}${newest === null ? '' : `, CUDA ${newest}`}: ${listWords(libraries)}.`,
  );
  const gpus = await snapshotAfterStartup(() => report.step('looking at the GPUs', DRIVER_TIMEOUT_MS));
  reportGPUs(
    report,
    gpus.filter(({ parent }) => parent === null),
    native()
      .driverDescribe()
      .map(({ persistence }) => persistence),
  );
  await checkCUDA(report);
}

/** The file that the links lead to: it has the version in its name. */
function realPath(path: string): string {
  return ifPossible(() => realpathSync(path), path);
}

/**
 * Reports what is remarkable about GPUs.
 * @param persistence of each, by index
 */
export function reportGPUs(
  report: Report,
  gpus: readonly GPU[],
  persistence: readonly (boolean | null)[],
): void {
  if (gpus.length === 0) {
    report.add(
      'gpu-unusable',
      'The driver works, but has no GPU.',
      'Check that the bus shows one (`lspci | grep -i nvidia`), and that no virtual machine uses it. In a container: `--gpus all`.',
    );
    return;
  }
  const healthy = gpus.filter(({ health }) => health === 'ok');
  if (healthy.length > 0) {
    const models = groupBy(healthy, ({ name }) => name || 'of an unknown model').map(
      ([name, members]) => `${list(members)}: ${members.length > 1 ? `${members.length} × ` : ''}${name}`,
    );
    const others = gpus.length > healthy.length ? 'They answer; the others:' : 'All answer.';
    report.add(
      'gpus',
      `${models.join('; ')}. ${healthy.length === 1 && gpus.length === 1 ? 'It answers.' : others}`,
    );
  }
  for (const gpu of gpus.filter(({ health }) => health !== 'ok')) {
    const kernel = '`dmesg | grep -i nvrm` says when and why.';
    const remedy =
      gpu.health === 'no-permission'
        ? 'This is intended where a container or a batch system gave you other GPUs. Otherwise check `ls -l /dev/nvidia*` and your groups.'
        : gpu.health === 'lost'
          ? `${kernel} Reboot; if it happens again, suspect power or hardware.`
          : `${kernel} ${resetOf(gpu.index)}. If that fails, reboot.`;
    report.add(
      'gpu-unusable',
      `${nameOf(gpu)}: ${(gpu.healthReason ?? gpu.health).replace(/ \([^(]*\)$/, '')}.`,
      remedy,
    );
  }
  for (const gpu of gpus.filter(({ memoryRepairPending }) => memoryRepairPending)) {
    report.add(
      'memory-repair-pending',
      `${nameOf(gpu)}: spare memory takes the place of faulty memory at its next reset.`,
      `${resetOf(gpu.index)}.`,
    );
  }
  const asleep = healthy.filter(({ index }) => persistence[index] === false);
  if (asleep.length > 0) {
    report.add(
      'persistence-off',
      `Persistence mode is off (${list(asleep)}): where no process keeps a GPU awake, each start of a program takes a second or more for it.`,
      'As root: `systemctl enable --now nvidia-persistenced`, or until the next boot `nvidia-smi -pm 1`.',
    );
  }
}

/**
 * Tries CUDA on the GPUs that are free, in another process: NVML may answer where CUDA fails. Failures are noted as by a claim, and
 * suspect GPUs that work again, too.
 */
async function checkCUDA(report: Report): Promise<void> {
  report.step('looking for free GPUs');
  const free = await findFreeGPUs();
  const directory = LockDirectory.find(undefined, loadConfiguration());
  if (free.length === 0) return;
  report.step(`trying CUDA on ${list(free)}`, DRIVER_TIMEOUT_MS);
  const first = tryCUDA(free, free).failure;
  if (first?.stage === 'load') throw placeholderError(first, [], '--placeholder none');
  const isMachines = first !== null && cudaCode(first.code).blames === 'machine';
  if (first !== null && (isMachines || free.length === 1)) {
    reportFailure(first, free, isMachines);
    return;
  }
  if (first !== null) report.step(`trying CUDA on each of ${list(free)}`, DRIVER_TIMEOUT_MS);
  const failures = first === null ? new Map<GPU, PlaceholderFailure>() : tryEach<GPU>(free, free);
  // If CUDA answers on none of several GPUs, none of them can be blamed.
  if (free.every((gpu) => failures.get(gpu)?.code === CUDA_HANGS) && first !== null) {
    reportFailure(first, free, true);
    return;
  }
  for (const [gpu, failure] of failures) reportFailure(failure, [gpu], false);
  const works = free.filter((gpu) => !failures.has(gpu));
  if (directory !== null) for (const gpu of works) if (gpu.suspect !== null) noteCUDA(directory, gpu, null);
  if (works.length > 0) report.add('cuda', `CUDA starts on ${list(works)}.`);

  function reportFailure(failure: PlaceholderFailure, gpus: readonly GPU[], isWholeMachine: boolean): void {
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

function nameOf({ index, name }: GPU): string {
  return name === '' ? `GPU ${index}` : `GPU ${index} (${name})`;
}

/** 'GPU 2', 'GPUs 1, 3 and 0:2': instances only where their GPU isn't named. */
export function list(gpus: readonly { index: number; instance: number | null }[]): string {
  const indices = gpus.filter(({ instance }) => instance === null).map(({ index }) => index);
  const instances = gpus.filter(({ index, instance }) => instance !== null && !indices.includes(index));
  const all = [...indices.sort((a, b) => a - b).map(String), ...instances.map(label)];
  return `GPU${all.length === 1 ? '' : 's'} ${listWords(all)}`;
}

function groupBy<Item>(items: readonly Item[], key: (item: Item) => string): [string, Item[]][] {
  const groups = new Map<string, Item[]>();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return [...groups];
}
