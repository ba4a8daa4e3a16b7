import { normalizeCriteria } from '../config/index.ts';
import { BEFORE_RESET, type GPU, isWSL, judge, label, resetOf } from '../gpus/index.ts';
import { listWords, type ProcessDescription } from '../platform/index.ts';
import type { FindingId, Report } from './finding.ts';

const UNHEALTHY: Record<Exclude<GPU['health'], 'ok'>, { id: FindingId; remedy: (gpu: GPU) => string }> = {
  lost: {
    id: 'gpu-lost',
    remedy: () =>
      '`dmesg | grep -i nvrm` says when and why. Reboot; if it happens again, suspect power or hardware.',
  },
  'reset-required': {
    id: 'gpu-reset-required',
    remedy: ({ index }) => `${resetOf(index)}. If that fails, reboot.`,
  },
  'no-permission': {
    id: 'gpu-no-permission',
    remedy: () =>
      'This is intended where a container or a batch system gave you other GPUs. Otherwise check `ls -l /dev/nvidia*` and your groups.',
  },
  'not-responding': {
    id: 'gpu-not-responding',
    remedy: () =>
      'See `dmesg | grep -i nvrm`, and try again in a minute. If it still does not answer, reboot. Claims skip it.',
  },
  unhealthy: {
    id: 'gpu-unhealthy',
    remedy: ({ index }) =>
      `${resetOf(index)}. If errors come again, ask for service. Claims skip it, except with \`--force\`.`,
  },
  failed: {
    id: 'gpu-failed',
    remedy: () => '`nvidia-smi` and `dmesg | grep -i nvrm` may say more.',
  },
};

/**
 * Reports what is remarkable about GPUs.
 * @param persistence of each, by index
 * @param describe who a process is
 */
export function reportGPUs(
  report: Report,
  gpus: readonly GPU[],
  persistence: readonly (boolean | null)[],
  describe: (pid: number) => ProcessDescription,
): void {
  if (gpus.length === 0) {
    report.add(
      'no-gpus',
      'The driver works, but has no GPU.',
      'Check that the bus shows one (`lspci | grep -i nvidia`), and that no virtual machine uses it. In a container: `--gpus all`.',
    );
    return;
  }
  reportModels(report, gpus);
  for (const gpu of gpus) {
    if (gpu.health === 'ok') continue;
    const { id, remedy } = UNHEALTHY[gpu.health];
    const reason = gpu.healthReason?.replace(/ \([^(]*\)$/, '') ?? gpu.health;
    report.add(id, `${nameOf(gpu)}: ${reason}.`, remedy(gpu));
  }
  for (const gpu of gpus.filter(({ memoryRepairPending }) => memoryRepairPending)) {
    report.add(
      'memory-repair-pending',
      `${nameOf(gpu)}: spare memory takes the place of faulty memory at its next reset.`,
      `${resetOf(gpu.index)}.`,
    );
  }
  reportModes(report, gpus);
  reportUse(report, gpus, describe);
  const asleep = gpus.filter(({ index, health }) => health === 'ok' && persistence[index] === false);
  if (asleep.length > 0) {
    report.add(
      'persistence-off',
      `Persistence mode is off (${list(asleep)}): where no process keeps a GPU awake, each start of a program takes a second or more for it.`,
      'As root: `systemctl enable --now nvidia-persistenced`, or until the next boot `nvidia-smi -pm 1`.',
    );
  }
}

function reportModels(report: Report, gpus: readonly GPU[]): void {
  const healthy = gpus.filter(({ health }) => health === 'ok');
  if (healthy.length === 0) return;
  const models = groupBy(healthy, ({ name }) => name || 'of an unknown model').map(
    ([name, members]) => `${list(members)}: ${members.length > 1 ? `${members.length} × ` : ''}${name}`,
  );
  report.add(
    'gpus',
    `${models.join('; ')}. ${gpus.length > healthy.length ? 'They answer; the others:' : healthy.length === 1 ? 'It answers.' : 'All answer.'}`,
  );
}

function reportModes(report: Report, gpus: readonly GPU[]): void {
  const exclusive = gpus.filter(({ computeMode }) => computeMode?.startsWith('exclusive-'));
  if (exclusive.length > 0) {
    report.add(
      'compute-mode-exclusive',
      `The compute mode of ${list(exclusive)} is ${listWords([...new Set(exclusive.map(({ computeMode }) => computeMode as string))])}: one process at a time can use it. Jobs of several processes fail there, and claims by \`run\` are not kept visible until the command has started.`,
      `If that isn't wanted, as root: \`nvidia-smi --compute-mode=DEFAULT${selection(exclusive, gpus)}\`.`,
    );
  }
  const prohibited = gpus.filter(({ computeMode }) => computeMode === 'prohibited');
  if (prohibited.length > 0) {
    report.add(
      'compute-mode-prohibited',
      `The compute mode of ${list(prohibited)} is prohibited: no CUDA program can use it, and it can't be claimed.`,
      `If that isn't wanted, as root: \`nvidia-smi --compute-mode=DEFAULT${selection(prohibited, gpus)}\`.`,
    );
  }
  for (const gpu of gpus.filter(({ migEnabled }) => migEnabled === true)) {
    if (gpu.migInstances.length === 0) {
      report.add(
        'mig-empty',
        `${nameOf(gpu)}: MIG is on, but it isn't divided into instances, so nobody can use it.`,
        `As root make some: \`nvidia-smi mig -i ${gpu.index} -lgip\` lists what is possible. Or turn it off: ${BEFORE_RESET} \`nvidia-smi -i ${gpu.index} -mig 0\`.`,
      );
      continue;
    }
    const kinds = groupBy(gpu.migInstances, ({ name }) => name.replace(/^.*MIG /, '') || '?').map(
      ([kind, members]) => `${members.length}×${kind}`,
    );
    report.add(
      'mig',
      `${nameOf(gpu)}: MIG is on, divided into ${listWords(kinds)}. The whole GPU can't be claimed.`,
      `To use the whole GPU, ${BEFORE_RESET} \`nvidia-smi -i ${gpu.index} -mig 0\`.`,
    );
  }
}

function reportUse(
  report: Report,
  gpus: readonly GPU[],
  describe: (pid: number) => ProcessDescription,
): void {
  const healthy = gpus.filter(({ health }) => health === 'ok');
  for (const gpu of healthy) {
    const hidden = hiddenUse(gpu, describe);
    if (hidden === null) continue;
    report.add(
      'hidden-use',
      `${nameOf(gpu)}: ${hidden}. Claims call it busy.`,
      `Look for containers (\`docker ps\`) and dead processes. If there are none, the driver has lost sight of it. ${resetOf(gpu.index)}. Or claim it with \`--max-used-memory any\`.`,
    );
  }
}

/** Use without a visible process: hidden in another container, or left behind by a dead one; null: there is none. */
function hiddenUse(gpu: GPU, describe: (pid: number) => ProcessDescription): string | null {
  // As a claim without conditions would judge it.
  const { state, reason } = judge(gpu, {
    lease: null,
    visible: null,
    criteria: normalizeCriteria({}),
    describe,
    wsl: isWSL(),
  });
  if (state !== 'busy' || reason === null) return null;
  const visible = (gpu.processes ?? []).filter(
    ({ pid, type }) => type === 'compute' && describe(pid).alive !== 'gone',
  );
  return visible.length > 0 ? null : reason.replace(/^busy: |: \S+ would accept it$/g, '');
}

function nameOf({ index, name }: GPU): string {
  return name === '' ? `GPU ${index}` : `GPU ${index} (${name})`;
}

/** 'GPU 2', 'GPUs 0 to 3 and 7', 'GPUs 1 and 0:2': instances only where their GPU isn't named. */
export function list(gpus: readonly { index: number; instance?: number | null }[]): string {
  const isPart = ({ instance }: { instance?: number | null }) => typeof instance === 'number';
  const wholes = gpus.filter((gpu) => !isPart(gpu)).map(({ index }) => index);
  const instances = gpus.filter((gpu) => isPart(gpu) && !wholes.includes(gpu.index)).map(label);
  const indices = wholes.sort((a, b) => a - b);
  const ranges: [number, number][] = [];
  for (const index of indices) {
    const last = ranges[ranges.length - 1];
    if (last !== undefined && last[1] === index - 1) last[1] = index;
    else ranges.push([index, index]);
  }
  const words = ranges.flatMap(([first, last]) => {
    if (first === last) return [String(first)];
    return last === first + 1 ? [String(first), String(last)] : [`${first} to ${last}`];
  });
  return `GPU${indices.length + instances.length === 1 ? '' : 's'} ${listWords([...words, ...instances])}`;
}

/** For the command line of nvidia-smi; all need not be named. */
function selection(some: readonly GPU[], all: readonly GPU[]): string {
  return some.length === all.length ? '' : ` -i ${some.map(({ index }) => index).join()}`;
}

function groupBy<Item>(items: readonly Item[], key: (item: Item) => string): [string, Item[]][] {
  const groups = new Map<string, Item[]>();
  for (const item of items) {
    const group = groups.get(key(item));
    if (group === undefined) groups.set(key(item), [item]);
    else group.push(item);
  }
  return [...groups];
}
