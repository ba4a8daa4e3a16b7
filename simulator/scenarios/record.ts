import { driverLibraries } from '../../lib/config/index.ts';
import {
  connectionOf,
  cudaVersion,
  type GPU,
  isWSL,
  type Measured,
  pcieKindOf,
  placeOf,
  readTopology,
  snapshotSync,
  type Topology,
} from '../../lib/gpus/index.ts';
import { native } from '../../lib/native.ts';

const MIB = 1024 ** 2;
/** simulator/machines.h has no room for more. */
const MAX_GRAPHICS = 4;

/**
 * A file that describes this machine, for `--simulate`; docs/simulator.md has its format.
 *
 * @param uuids whether it has the GPUs' UUIDs; otherwise the simulator makes some up
 * @throws ERR_NO_DRIVER, ERR_DRIVER
 */
export function recordMachine(uuids: boolean): string {
  const all = snapshotSync();
  const described = native().driverDescribe();
  const { version: driver } = native().driverLibrary();
  const { version: cuda } = native().cudaLibrary(driverLibraries().cuda);
  const whole = all.filter(({ instance }) => instance === null);
  const topology = readTopology();
  const head = [
    '# Recorded by `gpu-owner simulate record`: `gpu-owner status --simulate ./THIS-FILE` shows it.',
    `# It has ${uuids ? 'the UUIDs of the GPUs, but no' : 'no UUIDs,'} names of hosts, users or programs.`,
    ...(isWSL() ? ['# Recorded under WSL 2: its name has to begin with `wsl`.'] : []),
    ...(/^[\d.]{1,31}$/.test(driver) ? [`driver = ${driver}`] : []),
    ...(cuda >= 1000 ? [`cuda = ${cudaVersion(cuda)}`] : []),
    ...(described.some(({ persistence }) => persistence === false) ? ['persistence = off'] : []),
    ...(topology === null ? [] : bridges(whole, topology)),
  ];
  const sections = whole.map((gpu) => {
    const instances = all.filter(({ parent }) => parent !== null && parent === gpu.uuid);
    return [
      '',
      '[gpu]',
      ...sectionOf(gpu, instances, uuids, topology === null ? [] : places(gpu, whole, topology)),
    ];
  });
  return `${[...head, ...sections.flat()].join('\n')}\n`;
}

/** NVLinks between two GPUs. Those to switches need no line. */
function bridges(gpus: readonly GPU[], topology: Topology): string[] {
  return gpus.flatMap((a, i) =>
    gpus.slice(i + 1).flatMap((b) => {
      const { kind, links } = connectionOf(topology, a.uuid, b.uuid);
      return kind === 'nvlink' ? [`bridge = ${a.index}-${b.index} ${links}`] : [];
    }),
  );
}

/** The NUMA node of a GPU, and its PCIe switch: it has the number of the first GPU there. */
function places(gpu: GPU, gpus: readonly GPU[], topology: Topology): string[] {
  const [node] = placeOf(topology, gpu.uuid)?.nodes ?? [];
  const first = gpus.find(
    ({ uuid }) => uuid === gpu.uuid || pcieKindOf(topology, uuid, gpu.uuid) === 'pcie-switch',
  );
  return [
    ...(node === undefined || node > 63 ? [] : [`numa = ${node}`]),
    `switch = ${first?.index ?? gpu.index}`,
  ];
}

function sectionOf(gpu: GPU, instances: readonly GPU[], uuids: boolean, near: readonly string[]): string[] {
  const { totalBytes, reservedBytes, usedBytes } = gpu.memory;
  const isHealthy = gpu.health === 'ok';
  const lines = [`name = ${gpu.name.replace(/[^ -~]|["\\]/g, '?').slice(0, 63) || 'Simulated GPU'}`];
  if (gpu.pciBusId !== null) lines.push(`bus = ${gpu.pciBusId}`, ...near);
  if (totalBytes === null) {
    lines.push(
      `# The driver doesn't tell its memory${isHealthy ? '' : ` (${gpu.health})`}: this is made up.`,
    );
    lines.push('memory = 16GiB');
  } else {
    lines.push(`memory = ${Math.round(totalBytes / MIB)} MiB`);
    const reserved = reservedBytes ?? 0;
    lines.push(`reserved = ${reserved % MIB === 0 ? `${reserved / MIB} MiB` : reserved}`);
  }
  if (uuids && gpu.uuid !== '') lines.push(`uuid = ${gpu.uuid}`);
  if (!isHealthy) return lines;
  const graphics = (gpu.processes ?? []).filter(({ type }) => type === 'graphics').slice(0, MAX_GRAPHICS);
  const computing = (gpu.processes ?? []).filter(({ type }) => type === 'compute');
  const ofProcesses = new Map([...graphics, ...computing].map(({ pid, usedBytes }) => [pid, usedBytes ?? 0]));
  const own = [...ofProcesses.values()].reduce((left, bytes) => left - bytes, usedBytes ?? 0);
  if (usedBytes !== null) lines.push(`used = ${Math.max(0, own)}`);
  if (gpu.powerLimitWatts !== null) lines.push(`power-limit = ${gpu.powerLimitWatts} W`);
  // A GPU at work has other values than an idle one.
  if (computing.length === 0 && !gpu.utilizationPercent) {
    if (gpu.powerWatts !== null) lines.push(`idle-power = ${gpu.powerWatts} W`);
    if (gpu.temperatureCelsius !== null) lines.push(`temperature = ${gpu.temperatureCelsius} C`);
  }
  if (gpu.computeMode !== null && gpu.computeMode !== 'default')
    lines.push(`compute-mode = ${gpu.computeMode}`);
  if (gpu.displayActive) lines.push('display = on');
  lines.push(...graphics.map(({ usedBytes }) => `graphics = ${Math.round((usedBytes ?? 0) / MIB)} MiB`));
  if (gpu.migEnabled !== false) lines.push(`mig = ${gpu.migEnabled ? 'on' : 'none'}`);
  if (gpu.migEnabled) lines.push(...migInstances(gpu, instances, uuids));
  const unsupported = unsupportedCalls(gpu);
  if (unsupported.length > 0) lines.push(`unsupported = ${unsupported.join(', ')}`);
  return lines;
}

function migInstances(gpu: GPU, instances: readonly GPU[], uuids: boolean): string[] {
  const lines = instances.flatMap(({ instance, uuid, name, memory }, i) => {
    const profile = / MIG (\S{1,15})$/.exec(name)?.[1];
    const ids = gpu.migInstances[i];
    if (profile === undefined || ids === undefined) return [];
    const place = [instance, profile, `${ids.gpuInstanceId}:${ids.computeInstanceId}`];
    return [`instance = ${[...place, ...(uuids ? [uuid] : []), memory.totalBytes ?? ''].join(' ').trim()}`];
  });
  return lines.length > 0 ? lines : ['instance = none'];
}

/** The calls, as `simulate set` names them, that the driver doesn't answer for this GPU. */
function unsupportedCalls(gpu: GPU): string[] {
  const measured: Readonly<Record<Measured, [call: string, isMissing: boolean]>> = {
    powerWatts: ['power', gpu.powerWatts === null],
    powerLimitWatts: ['power-limit', gpu.powerLimitWatts === null],
    energyJoules: ['energy', Number.isNaN(native().driverEnergy(gpu.uuid))],
    // With MIG on, no driver tells it.
    utilizationPercent: ['utilization', gpu.utilizationPercent === null && !gpu.migEnabled],
    temperatureCelsius: ['temperature', gpu.temperatureCelsius === null],
    memoryErrors: ['ecc', gpu.memoryErrors === undefined && gpu.memoryRepairPending === null],
  };
  const calls: (readonly [call: string, isMissing: boolean])[] = [
    ['memory', gpu.memory.totalBytes === null],
    ...Object.values(measured),
    ['compute-mode', gpu.computeMode === null],
    ['display', gpu.displayActive === null],
    ['processes', gpu.processes === null],
    ['graphics-processes', gpu.processes === null],
    ['mps-processes', gpu.processes === null],
  ];
  return calls.flatMap(([call, isMissing]) => (isMissing ? [call] : []));
}
