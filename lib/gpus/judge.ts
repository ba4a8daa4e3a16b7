import type { NormalizedCriteria } from '../config/index.ts';
import { formatBytes, MAX_USER_NAME_LENGTH, sanitize } from '../platform/index.ts';
import { describeLease, describeShares, formatUnits } from './lease-text.ts';
import { isMPSServer } from './listed-processes.ts';
import { isDivided, selects } from './selection.ts';
import {
  type GPU,
  type JudgeContext,
  type Room,
  SHARE_UNIT_BYTES,
  type Sharing,
  type Verdict,
} from './types.ts';
import { type ComputeProcess, measureUse, sum, type Use } from './use.ts';

/** Memory that may be in use on a free GPU beyond what visible processes explain: the driver's own, mostly. */
export const MAX_UNEXPLAINED_BYTES = 100 * 1024 ** 2;

/** Memory left to a desktop of unknown size: this, but at most half of the GPU's memory. */
const DESKTOP_ALLOWANCE_BYTES = 4 * 1024 ** 3;

const GIB = 1024 ** 3;

/** Whether a GPU is free for these criteria, or why it isn't. */
export function judge(gpu: GPU, context: JudgeContext): Verdict {
  const { criteria, lease } = context;
  const excluded = whyExcluded(gpu, context);
  if (excluded !== null) return { state: 'excluded', reason: excluded, transient: false };
  if (isHidden(gpu, context)) {
    const reason = 'not in the CUDA_VISIBLE_DEVICES that was inherited';
    return { state: 'excluded', reason, isHidden: true, transient: false };
  }
  const unavailable = whyUnavailable(gpu, criteria);
  if (unavailable !== null) {
    const silent = gpu.health === 'not-responding' ? { silent: true as const } : {};
    return { state: 'unavailable', reason: unavailable, transient: false, ...silent };
  }
  const { sharing } = context;
  if (sharing !== undefined && sharing.wanted !== null && sharing.capacity === null) {
    const reason = `the driver doesn't tell how much memory it has: leave out ${criteria.names.memory ?? 'memory'}`;
    return { state: 'unavailable', reason, transient: false };
  }
  if (lease !== null) return { state: 'leased', reason: describeLease(lease, context), transient: false };
  if (sharing === undefined) return judgeFree(gpu, context);
  if (sharing.wanted === null)
    return { state: 'leased', reason: describeShares(gpu, sharing), transient: false };
  return judgeRoom(gpu, context, sharing, sharing.wanted, sharing.capacity ?? 0);
}

/** Whether a GPU without a lease is free. */
function judgeFree(gpu: GPU, context: JudgeContext): Verdict {
  const { criteria } = context;
  if (!criteria.force) return judgeUse(gpu, context);
  // In an exclusive compute mode, one process keeps all others off the GPU, also with --force.
  const accepting = { ...context, criteria: { ...criteria, allowProcesses: true } };
  const occupied = context.ofOwnJob ? null : judgeProcesses(gpu, measureUse(gpu, context), accepting);
  return occupied ?? { state: 'free', reason: null, transient: false };
}

/** Whether a GPU has room for another share. */
function judgeRoom(
  gpu: GPU,
  context: JudgeContext,
  sharing: Sharing,
  wanted: number,
  capacity: number,
): Verdict {
  const { taken } = sharing;
  const unavailable = (reason: string): Verdict => ({ state: 'unavailable', reason, transient: false });
  const option = context.criteria.names.memory ?? 'memory';
  if (wanted > capacity) {
    return unavailable(`has only ${formatUnits(capacity)} of memory (${option}: ${formatUnits(wanted)})`);
  }
  const use = measureUse(gpu, context);
  if (!use.mps && gpu.computeMode?.startsWith('exclusive') === true) {
    return unavailable(
      `its compute mode '${gpu.computeMode}' admits one process only, so it can't be shared (an administrator can change it: nvidia-smi --compute-mode=DEFAULT)`,
    );
  }
  const limit = Math.max(0, capacity - unitsOfOthers(use, sharing));
  const room: Room = { room: Math.max(0, limit - taken), limit };
  const verdict = judgeFree(gpu, context);
  if (verdict.state !== 'free') return { ...verdict, room };
  if (room.room >= wanted) return { ...verdict, room };
  const left = `${formatUnits(room.room)} of ${formatUnits(capacity)} ${room.room === 0 ? 'is' : 'are'} left (${option}: ${formatUnits(wanted)})`;
  const others = limit < capacity ? `; ${formatUnits(capacity - limit)} are used beyond what is leased` : '';
  const holders = sharing.shares.length === 0 ? '' : `; ${describeShares(gpu, sharing)}`;
  return { state: 'leased', reason: left + others + holders, transient: false, room };
}

/** The units that are no longer to be had, though no share has them: of strangers, and what shares use beyond their size. */
function unitsOfOthers(use: Use, { shares }: Sharing): number {
  const listed = [...use.compute, ...use.graphics].map(({ usedBytes }) => usedBytes ?? 0);
  const beyond = shares.map(({ bytes, usedBytes }) => Math.max(0, (usedBytes ?? 0) - bytes));
  const unexplained = Math.max(
    0,
    (use.unexplained ?? 0) - sum(use.compute.map(({ usedBytes }) => usedBytes ?? 0)),
  );
  const nobodys = unexplained > MAX_UNEXPLAINED_BYTES ? unexplained : 0;
  return Math.ceil((sum(listed) + sum(beyond) + nobodys) / SHARE_UNIT_BYTES);
}

function whyExcluded(gpu: GPU, { criteria }: JudgeContext): string | null {
  const name = (key: string) => criteria.names[key] ?? key;
  for (const { selectors, source } of criteria.exclude) {
    if (selectors.some((selector) => selects(selector, gpu))) {
      return source === null ? `excluded by ${name('exclude')}` : `banned by ${source}`;
    }
  }
  for (const { selectors, source } of criteria.devices) {
    if (!selectors.some((selector) => selects(selector, gpu))) {
      return source === null
        ? `not among the GPUs asked for (${name('devices')})`
        : `not among the devices that ${source} allows`;
    }
  }
  return null;
}

/** Whether the environment hides a GPU. */
function isHidden(gpu: GPU, { visible }: JudgeContext): boolean {
  // Without a UUID nothing says that it is one of them.
  const isVisible = (uuid: string | null) => uuid !== null && visible?.has(uuid) === true;
  return visible !== null && !isVisible(gpu.uuid) && !isVisible(gpu.parent);
}

/** How many GPUs the environment hides, in words; null: none. */
export function describeHidden(gpus: readonly { isHidden?: boolean }[]): string | null {
  const hidden = gpus.filter((gpu) => gpu.isHidden === true).length;
  if (hidden === 0) return null;
  return `the CUDA_VISIBLE_DEVICES that was inherited leaves out ${hidden === 1 ? 'another GPU' : `${hidden} other GPUs`}`;
}

const HEALTH_REASONS: Record<Exclude<GPU['health'], 'ok'>, string> = {
  lost: 'the GPU has fallen off the bus (a reboot may bring it back)',
  'reset-required': 'the GPU must be reset (nvidia-smi --gpu-reset)',
  'no-permission': 'no permission to use the GPU (its device file or the container forbids it)',
  'not-responding': "the driver doesn't answer for this GPU",
  unhealthy: 'its memory has faults',
  failed: 'the driver reports an error for this GPU',
};

/** Reasons that a wait doesn't mend. */
function whyUnavailable(gpu: GPU, criteria: NormalizedCriteria): string | null {
  const health = gpu.health === 'ok' ? null : sanitize(gpu.healthReason) || HEALTH_REASONS[gpu.health];
  if (health !== null && !criteria.force) return health;
  // A lease goes by UUID, so nothing can be forced without.
  if (gpu.uuid === '') return health ?? "the driver doesn't tell the UUID of this GPU";
  if (isDivided(gpu)) {
    return gpu.migInstances.length > 0
      ? 'MIG is on: divided into instances, which are claimed instead'
      : (health ??
          'MIG is on, but nobody has made instances: nothing can run on it (nvidia-smi mig makes them)');
  }
  if (gpu.computeMode === 'prohibited') {
    return "its compute mode is 'prohibited' (an administrator can change it: nvidia-smi --compute-mode=DEFAULT)";
  }
  return null;
}

interface Obstacle {
  reason: string;
  transient: boolean;
  /** Missing knowledge is not use: waiting doesn't help. */
  state: 'busy' | 'unavailable';
}

function judgeUse(gpu: GPU, context: JudgeContext): Verdict {
  const { criteria } = context;
  const use = measureUse(gpu, context);
  const main = context.ofOwnJob
    ? criteria.maxUsedMemory === null
      ? null
      : judgeMemory(gpu, use, context)
    : (judgeProcesses(gpu, use, context) ?? judgeMemory(gpu, use, context));
  const obstacles = main === null ? [] : [main];
  const thresholds = judgeThresholds(gpu, use, context);
  obstacles.push(...thresholds);
  if (obstacles.length === 0) return { state: 'free', reason: null, transient: false };
  // Obstacles that waiting doesn't remove come first. Processes and memory usually are why thresholds aren't met, too.
  const lasting = obstacles.filter(({ state }) => state === 'unavailable');
  const shown = lasting.length > 0 ? lasting : main === null ? thresholds : [main];
  return {
    state: lasting.length > 0 ? 'unavailable' : 'busy',
    reason: shown.map(({ reason }) => reason).join('; '),
    transient: obstacles.every(({ transient }) => transient),
  };
}

function judgeProcesses(gpu: GPU, use: Use, { criteria }: JudgeContext): Obstacle | null {
  const [first] = use.compute;
  if (first === undefined) return null;
  const mode = gpu.computeMode;
  const exclusive = !use.mps && (mode === 'exclusive-process' || mode === 'exclusive-thread');
  if (criteria.allowProcesses && !exclusive) return null;
  const more = use.compute.length > 1 ? `, and ${use.compute.length - 1} more` : '';
  const why = criteria.allowProcesses
    ? ` (its compute mode '${gpu.computeMode}' admits one process only)`
    : '';
  return {
    reason: `${describeUser(first)}${more}${why}`,
    transient: !use.living,
    state: 'busy',
  };
}

function describeUser({ pid, usedBytes, who }: ComputeProcess): string {
  const name = sanitize(who.name, 32);
  const user = sanitize(who.user, MAX_USER_NAME_LENGTH);
  const process = name
    ? `${name} (pid ${pid}${user ? `, ${user}` : ''})`
    : `pid ${pid}${user ? ` (${user})` : ''}`;
  const whose = isMPSServer(who) ? ' for its clients' : '';
  const uses = usedBytes === null ? 'computes' : `uses ${formatBytes(usedBytes)}${whose}`;
  if (who.alive === 'gone')
    return `${process} ${uses} (it isn't visible here: in another container, or it has just ended)`;
  return who.alive === 'dying' ? `${process} is ending but still ${uses}` : `${process} ${uses}`;
}

function judgeMemory(gpu: GPU, use: Use, context: JudgeContext): Obstacle | null {
  const { criteria, wsl } = context;
  const { maxUsedMemory, allowProcesses } = criteria;
  const option = criteria.names.maxUsedMemory ?? 'maxUsedMemory';
  const allow = criteria.names.allowProcesses ?? 'allowProcesses';
  if (maxUsedMemory === 'any') {
    // WSL lists no processes, so this can only mean: let leases decide.
    if (gpu.processes !== null || allowProcesses || wsl) return null;
    return unknownObstacle(
      `the driver doesn't list processes for this GPU, and memory may not tell: ${allow} would accept it`,
    );
  }
  if (use.unexplained === null) {
    // A GPU that shares the system's memory (GB10) tells nothing of it: its processes decide.
    if (maxUsedMemory === null && gpu.processes !== null) return null;
    const together = allowProcesses || wsl ? '' : ` together with ${allow}`;
    return unknownObstacle(
      maxUsedMemory === null
        ? `the driver tells neither memory in use nor processes of this GPU: ${option} 'any'${together} would judge by leases alone`
        : `the driver doesn't tell memory in use for this GPU: leave out ${option}, or let it be 'any'`,
    );
  }
  const allowance = desktopAllowance(gpu, use, context);
  if (use.unexplained <= (maxUsedMemory ?? allowance ?? MAX_UNEXPLAINED_BYTES)) return null;
  const remedy =
    maxUsedMemory === null
      ? `: ${option}${allowance === null ? '' : ` ${Math.ceil(use.unexplained / GIB)}GiB`} would accept it`
      : `: more than ${option} allows (${formatBytes(maxUsedMemory)})`;
  return {
    reason: `${formatBytes(use.unexplained)} in use${whoseMemory(gpu, use, context, allowance)}${remedy}`,
    transient: !use.living,
    state: 'busy',
  };
}

/** Memory that is left to a desktop whose use of memory the driver doesn't tell; null: there is none, or the driver does. */
function desktopAllowance({ memory }: GPU, { graphics }: Use, { wsl }: JudgeContext): number | null {
  if (!wsl && !graphics.some(({ usedBytes }) => usedBytes === null)) return null;
  return Math.max(MAX_UNEXPLAINED_BYTES, Math.min(DESKTOP_ALLOWANCE_BYTES, (memory.totalBytes ?? 0) / 2));
}

function whoseMemory(gpu: GPU, use: Use, { criteria, wsl }: JudgeContext, allowance: number | null): string {
  const left = allowance !== null && criteria.maxUsedMemory === null ? formatBytes(allowance) : null;
  if (wsl && left !== null && use.compute.length === 0) {
    return `, more than the ${left} that are left to Windows and its programs by default`;
  }
  if (gpu.processes === null) return ", and the driver doesn't list processes here";
  const { compute, graphics } = use;
  if (compute.length > 0) {
    return criteria.maxUsedMemory === null ? ' beyond what the visible processes use' : '';
  }
  if (graphics.length === 0) {
    return gpu.processes.length === 0
      ? ', but no process is visible'
      : ' beyond what this process itself uses';
  }
  return graphics.some(({ usedBytes }) => usedBytes === null)
    ? `, and the driver doesn't tell how much of it is the desktop's${left === null ? '' : ` (${left} are left to it by default)`}`
    : ' beyond what visible graphics processes use';
}

function judgeThresholds(gpu: GPU, use: Use, { criteria }: JudgeContext): Obstacle[] {
  const obstacles: Obstacle[] = [];
  const name = (key: string) => criteria.names[key] ?? key;
  const remains = !use.living && (use.compute.length > 0 || use.remains > MAX_UNEXPLAINED_BYTES);
  const { minFreeMemory } = criteria;
  const { freeBytes, totalBytes } = gpu.memory;
  if (minFreeMemory !== null) {
    const wanted = `${name('minFreeMemory')}: ${formatBytes(minFreeMemory)}`;
    if (totalBytes !== null && totalBytes < minFreeMemory) {
      obstacles.push(unknownObstacle(`has only ${formatBytes(totalBytes)} of memory in all (${wanted})`));
    } else if (freeBytes === null) {
      obstacles.push(
        unknownObstacle(`the driver doesn't tell free memory: leave out ${name('minFreeMemory')}`),
      );
    } else if (freeBytes < minFreeMemory) {
      obstacles.push({
        reason: `only ${formatBytes(freeBytes)} of memory are free (${wanted})`,
        transient: remains && freeBytes + use.remains >= minFreeMemory,
        state: 'busy',
      });
    }
  }
  // Power and utilization are averages over up to a second: they fall when the memory has been given back.
  const limits = [
    ['maxPower', gpu.powerWatts, 'power', 'draws', ' W', remains],
    ['maxUtilization', gpu.utilizationPercent, 'utilization', 'utilization is', ' %', remains],
    ['maxTemperature', gpu.temperatureCelsius, 'temperature', 'is at', ' °C', false],
  ] as const;
  for (const [key, value, what, verb, unit, transient] of limits) {
    const limit = criteria[key];
    if (limit === null || (value === null && criteria.allowUnknown)) continue;
    if (value === null) {
      const remedy = `leave out ${name(key)}, or add ${name('allowUnknown')}`;
      obstacles.push(unknownObstacle(`the driver doesn't tell ${what}: ${remedy}`));
    } else if (value > limit) {
      const reason = `${verb} ${Math.round(value * 10) / 10}${unit} (${name(key)}: ${limit}${unit})`;
      obstacles.push({ reason, transient, state: 'busy' });
    }
  }
  return obstacles;
}

function unknownObstacle(reason: string): Obstacle {
  return { reason, transient: false, state: 'unavailable' };
}
