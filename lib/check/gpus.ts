import { realpathSync } from 'node:fs';
import {
  type GPUStatus,
  LockDirectory,
  leaseName,
  noteCUDA,
  placeholderError,
  snapshotAfterStartup,
  tryCUDA,
  tryEach,
} from '../claims/index.ts';
import { driverLibraries, loadConfiguration } from '../config/index.ts';
import { machinePath } from '../conventions/index.ts';
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
  placeOf,
  readTopology,
  resetOf,
} from '../gpus/index.ts';
import { native, type PlaceholderFailure } from '../native.ts';
import { formatSince, listWords, pathIn, readSmallFile } from '../platform/index.ts';
import { findFreeGPUs, getGPUs } from '../status/index.ts';
import { reportRules } from './configuration.ts';
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
  reportLinks(report, gpus);
  reportLanes(report, gpus);
  reportRules(report, gpus);
  await checkCUDA(report);
  reportOverdue(report, await getGPUs());
}

/** NVLinks that are down cost nothing but time, so no program tells of them. */
function reportLinks(report: Report, gpus: readonly GPU[]): void {
  const topology = readTopology();
  for (const gpu of gpus) {
    const { active = 0, inactive = 0 } = placeOf(topology, gpu.uuid) ?? {};
    if (inactive <= 0) continue;
    report.add(
      'nvlink-down',
      `${nameOf(gpu)}: ${inactive} of its ${active + inactive} NVLinks are down.`,
      `\`nvidia-smi nvlink --status -i ${gpu.index}\` shows them. Check the bridge; with NVSwitches, the fabric manager (\`systemctl status nvidia-fabricmanager\`).`,
    );
  }
}

/** An idle GPU may switch lanes off to save power; one that is busier than this, in percent, needs them. */
const MIN_LOAD = 50;

function reportLanes(report: Report, gpus: readonly GPU[]): void {
  for (const gpu of gpus) {
    if (gpu.pciBusId === null || (gpu.utilizationPercent ?? 0) < MIN_LOAD) continue;
    // The driver writes the domain with eight digits, the kernel with four.
    const device = gpu.pciBusId.toLowerCase().replace(/^0000(?=....:)/, '');
    const lanes = (which: string) =>
      Number(readSmallFile(machinePath(`/sys/bus/pci/devices/${device}/${which}_link_width`)));
    const [used, most] = [lanes('current'), lanes('max')];
    if (!(used > 0 && used < most)) continue;
    report.add(
      'pcie-narrow',
      `${nameOf(gpu)}: it computes, and its PCIe link has ${used} of ${most} lanes.`,
      'Check that the card sits firmly, and that its slot and riser have as many lanes.',
    );
  }
}

/** Preemptible leases that don't end: their keepers are suspended or killed, or belong to no gpu-owner. */
function reportOverdue(report: Report, gpus: readonly GPUStatus[]): void {
  const directory = LockDirectory.find(undefined, loadConfiguration());
  for (const { index, uuid, lease } of gpus) {
    if (directory === null || !lease?.askedToGiveWay) continue;
    report.add(
      'preemption-overdue',
      `GPU ${index}: ${lease.user}'s preemptible job was asked to give way at ${formatSince(lease.askedToGiveWay)}, and hasn't within its grace. Other jobs give way in its place.`,
      `As root, \`fuser -v ${pathIn(directory.path, leaseName(uuid))}\` names its processes: resume them with \`kill -CONT\`, or end them.`,
    );
  }
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
