import type { NormalizedCriteria, Selector } from '../config/index.ts';
import { listWords, sanitize, usageError } from '../platform/index.ts';
import { bestConnected, connectedSets, type Topology, worthsOf } from './topology.ts';
import type { GPU, Verdict } from './types.ts';

/** How much less free memory, as a part, a GPU may have than another one that it stands in for because of its connections. */
const SIMILAR = 0.9;

/**
 * Chooses `count` of the GPUs that are free: those with most free memory, then those with the lowest index. A GPU that drives a
 * display counts with half of its free memory, so that a like one without is preferred, but not a far smaller one. GPUs whose
 * free memory is unknown come last. Among GPUs with about as much free memory, those that are best connected with each other,
 * and then those that leave others the best connected ones. If there are too few whole ones, MIG instances: the smallest,
 * as a claim that needs a larger one says so; of the same size those with most free memory. The two are never mixed. The chosen
 * ones are returned in the order of their index, so that the order of devices in a program doesn't depend on a few bytes. null:
 * there aren't that many.
 * @param topology null: unknown, or of no interest @param isConnected whether only GPUs will do that are connected with each other
 */
export function select(
  candidates: readonly GPU[],
  count: number,
  topology: Topology | null = null,
  isConnected = false,
): GPU[] | null {
  if (!Number.isSafeInteger(count) || count < 1) {
    throw usageError(`count: ${count} is not a number of GPUs; use 1, 2, …`);
  }
  const whole = candidates.filter((gpu) => !isInstance(gpu));
  const kind = whole.length >= count ? whole : candidates.filter(isInstance);
  if (kind.length < count) return null;
  const size = (gpu: GPU) => (isInstance(gpu) ? (gpu.memory.totalBytes ?? Number.POSITIVE_INFINITY) : 0);
  const bySize = (a: GPU, b: GPU) => (size(a) === size(b) ? 0 : size(a) - size(b));
  const sorted = kind.sort((a, b) => bySize(a, b) || worth(b) - worth(a) || byPlace(a, b));
  if (isConnected) return selectOnlyConnected(sorted, count, topology)?.sort(byPlace) ?? null;
  const chosen = topology !== null && kind === whole ? selectConnected(sorted, count, topology) : null;
  return (chosen ?? sorted.slice(0, count)).sort(byPlace);
}

/** @param sorted whole GPUs, the best first; null: all connections are as good */
function selectConnected(sorted: readonly GPU[], count: number, topology: Topology): GPU[] | null {
  const similar = withSimilarMemory(sorted, count);
  if (!offersChoice(similar.length, count)) return null;
  const worths = worthsOf(topology, uuidsOf(similar));
  return bestConnected(similar.length, count, worths).map((i) => similar[i] as GPU);
}

/** @param sorted the best first; null: no such number of them is connected */
function selectOnlyConnected(sorted: readonly GPU[], count: number, topology: Topology | null): GPU[] | null {
  if (topology === null) return null;
  for (const gpus of [withSimilarMemory(sorted, count), sorted]) {
    const uuids = uuidsOf(gpus);
    const sets = connectedSets(topology, uuids, count).map((set) => set.map((uuid) => uuids.indexOf(uuid)));
    const worths = worthsOf(topology, uuids);
    if (sets.length > 0) return bestConnected(gpus.length, count, worths, sets).map((i) => gpus[i] as GPU);
  }
  return null;
}

/** Those that have about as much free memory as the best `count`. */
function withSimilarMemory(sorted: readonly GPU[], count: number): readonly GPU[] {
  const last = sorted[count - 1];
  if (last === undefined) return [];
  const least = worth(last) * (worth(last) > 0 ? SIMILAR : 1);
  return sorted.filter((gpu) => worth(gpu) >= least);
}

function uuidsOf(gpus: readonly GPU[]): string[] {
  return gpus.map(({ uuid }) => uuid);
}

/** Whether connections can decide which GPUs are taken: of two, either one leaves the other. */
export function offersChoice(free: number, count: number): boolean {
  return free > count && free > 2;
}

function worth({ memory, displayActive }: GPU): number {
  if (memory.freeBytes === null) return displayActive ? -2 : -1;
  return displayActive ? memory.freeBytes / 2 : memory.freeBytes;
}

/** Whether a GPU may become free: leased, busy and silent ones may, and those on which CUDA has just failed. */
export function mayBecomeFree({
  state,
  silent,
  retryAt,
}: Pick<Verdict, 'state' | 'silent' | 'retryAt'>): boolean {
  return state !== 'excluded' && (state !== 'unavailable' || silent === true || retryAt !== undefined);
}

/** Whether `count` GPUs could be had by waiting. */
export function isPossible(
  count: number,
  verdicts: readonly Pick<Verdict, 'state' | 'silent' | 'retryAt'>[],
): boolean {
  return verdicts.filter(mayBecomeFree).length >= count;
}

/** How people name a GPU ('0') or a MIG instance ('0:2': number 2 of GPU 0). */
export function label({ index, instance }: { index: number; instance?: number | null | undefined }): string {
  return typeof instance === 'number' ? `${index}:${instance}` : String(index);
}

export function isInstance(gpu: Pick<GPU, 'instance'>): boolean {
  return typeof gpu.instance === 'number';
}

/** Whether MIG is on: then the GPU isn't used as a whole. */
export function isDivided(gpu: Pick<GPU, 'migEnabled' | 'migInstances'>): boolean {
  return gpu.migEnabled === true || gpu.migInstances.length > 0;
}

/** By GPU; a GPU stands before its instances. */
export function byPlace(a: Pick<GPU, 'index' | 'instance'>, b: Pick<GPU, 'index' | 'instance'>): number {
  return a.index - b.index || (a.instance ?? -1) - (b.instance ?? -1);
}

/**
 * One claim never mixes whole GPUs and MIG instances: CUDA_VISIBLE_DEVICES can't. For one, either will do. For several, whole
 * GPUs are meant, as instances don't work together (no peer access), unless there are too few of them, but enough instances:
 * the claim is restricted to instances, or all GPUs are divided.
 * @returns the candidates, those of the other kind excluded
 */
export function separateKinds<Each extends { gpu: GPU; verdict: Verdict }>(
  candidates: readonly Each[],
  count: number,
): Each[] {
  const instances = candidates.filter(({ gpu }) => isInstance(gpu));
  if (count < 2 || instances.length === 0) return [...candidates];
  const allowed = ({ verdict }: Each) => verdict.state !== 'excluded';
  const whole = candidates.filter((each) => !isInstance(each.gpu) && !isDivided(each.gpu) && allowed(each));
  const takesInstances = whole.length < count && instances.filter(allowed).length >= count;
  const reason =
    takesInstances || whole.length < count
      ? 'one claim never mixes whole GPUs and MIG instances'
      : 'several are taken as whole GPUs (to claim MIG instances, name them)';
  return candidates.map((each) =>
    isInstance(each.gpu) !== takesInstances && allowed(each) && !isDivided(each.gpu)
      ? { ...each, verdict: { state: 'excluded', reason, transient: false } }
      : each,
  );
}

/** Said where several MIG instances were claimed. */
export const SHOWS_ONE_INSTANCE =
  'CUDA shows a process only the first of these MIG instances (drivers before R570 show one, later ones one of each GPU ' +
  'instance). All are leased: start a process for each, with CUDA_VISIBLE_DEVICES set to one of the UUIDs.';

/** Whether a selector names this GPU or, by its index or UUID, the GPU that this is an instance of. */
export function selects(selector: Selector, gpu: GPU): boolean {
  switch (selector.kind) {
    case 'index':
      return gpu.index === selector.index;
    case 'range':
      return gpu.index >= selector.first && gpu.index <= selector.last;
    case 'instance':
      return gpu.index === selector.index && gpu.instance === selector.instance;
    case 'uuid':
      return (
        gpu.uuid.toLowerCase().startsWith(selector.prefix) ||
        gpu.parent?.toLowerCase().startsWith(selector.prefix) === true
      );
    case 'name':
      return matchesName(selector.pattern, gpu.name);
  }
}

/** Whether a name contains the pattern or, where the pattern has a '*' (any characters), is like it. Capitals don't matter. */
export function matchesName(pattern: string, name: string): boolean {
  const text = name.toLowerCase();
  const parts = pattern.toLowerCase().split('*');
  if (parts.length === 1) return text.includes(parts[0] ?? '');
  const start = parts[0] ?? '';
  const end = parts[parts.length - 1] ?? '';
  if (text.length < start.length + end.length || !text.startsWith(start) || !text.endsWith(end)) return false;
  let from = start.length;
  for (const part of parts.slice(1, -1)) {
    const at = text.indexOf(part, from);
    if (at < 0) return false;
    from = at + part.length;
  }
  return from <= text.length - end.length;
}

/**
 * Whether the GPUs that a call names exist. GPUs that configuration files name needn't: a dead card vanishes. Nor do models that are excluded.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT, listing what exists.
 */
export function checkDevices(criteria: NormalizedCriteria, gpus: readonly GPU[]): void {
  for (const key of ['devices', 'exclude'] as const) {
    for (const rule of criteria[key]) {
      if (rule.source !== null) continue;
      for (const selector of rule.selectors)
        if (key === 'devices' || selector.kind !== 'name')
          checkExists(selector, gpus, criteria.names[key] ?? key);
    }
  }
}

function checkExists(selector: Selector, gpus: readonly GPU[], option: string): void {
  // The instances of a GPU that is named are no matches besides it.
  const wholeOnly = selector.kind === 'uuid' && selector.prefix.startsWith('gpu-');
  const fitting = gpus.filter((gpu) => selects(selector, gpu) && !(wholeOnly && isInstance(gpu)));
  let problem: string | null = null;
  if (selector.kind === 'range') {
    const found = new Set(fitting.map(({ index }) => index));
    if (found.size <= selector.last - selector.first)
      problem = `this machine doesn't have all GPUs of '${selector.text}'`;
  } else if (fitting.length === 0) {
    const isOne = selector.kind === 'instance' || /^mig-/i.test(selector.text);
    problem = `this machine has no ${isOne ? 'MIG instance' : 'GPU'} '${selector.text}'`;
    const digits = selector.kind === 'index' && gpus.some((gpu) => matchesName(selector.text, gpu.name));
    if (digits) problem += ` (for the name write '*${selector.text}*')`;
  } else if (selector.kind === 'uuid' && fitting.length > 1) {
    problem = `'${selector.text}' is the beginning of ${fitting.length} UUIDs; write more of it`;
  }
  if (problem !== null) {
    throw usageError(`${option}: ${problem}. ${describeWhatExists(gpus)}`);
  }
}

function describeWhatExists(gpus: readonly GPU[]): string {
  if (gpus.length === 0) return 'The driver reports no GPU at all';
  const shown = gpus
    .slice(0, 16)
    .map(
      (gpu) =>
        `${label(gpu)} (${[sanitize(gpu.name, 60), sanitize(gpu.uuid, 60)].filter(Boolean).join(', ')})`,
    );
  if (gpus.length > shown.length) shown.push(`${gpus.length - shown.length} more`);
  return `There ${gpus.length === 1 ? 'is' : 'are'} ${listWords(shown)}`;
}
