import {
  type DeviceSelector,
  type NormalizedCriteria,
  parseSelectors,
  type Selector,
} from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { listWords, sanitize } from '../platform/index.ts';
import { byPlace, isInstance, label } from './instances.ts';
import type { GPU } from './types.ts';

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
 * The GPUs that selectors name, each once, by index.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT when a selector names no GPU of this machine or a UUID's beginning
 * fits several; the message lists what exists.
 */
export function resolveDevices(
  selectors: DeviceSelector | readonly DeviceSelector[] | readonly Selector[],
  gpus: readonly GPU[],
  option = 'devices',
): GPU[] {
  const parsed = isParsed(selectors) ? selectors : parseSelectors(selectors, option);
  for (const selector of parsed) checkExists(selector, gpus, option);
  return gpus.filter((gpu) => parsed.some((selector) => selects(selector, gpu))).sort(byPlace);
}

/**
 * Whether the GPUs that a call names exist. Those named by configuration files needn't: a dead card vanishes.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT, listing what exists.
 */
export function checkDevices(criteria: NormalizedCriteria, gpus: readonly GPU[]): void {
  for (const key of ['devices', 'exclude'] as const) {
    for (const rule of criteria[key]) {
      if (rule.source === null) resolveDevices(rule.selectors, gpus, criteria.names[key] ?? key);
    }
  }
}

function isParsed(selectors: unknown): selectors is readonly Selector[] {
  return Array.isArray(selectors) && selectors.every((each) => typeof each === 'object' && each !== null);
}

function checkExists(selector: Selector, gpus: readonly GPU[], option: string): void {
  // Of a GPU that is named, its instances are no others.
  const wholeOnly = selector.kind === 'uuid' && selector.prefix.startsWith('gpu-');
  const fitting = gpus.filter((gpu) => selects(selector, gpu) && !(wholeOnly && isInstance(gpu)));
  let problem: string | null = null;
  if (selector.kind === 'range') {
    const missing = missingIndices(selector.first, selector.last, gpus);
    if (missing !== null)
      problem = `'${selector.text}' names GPU ${missing}, which this machine doesn't have`;
  } else if (fitting.length === 0) {
    const isOne = selector.kind === 'instance' || /^mig-/i.test(selector.text);
    problem = `this machine has no ${isOne ? 'MIG instance' : 'GPU'} '${selector.text}'`;
    const digits = selector.kind === 'index' && gpus.some((gpu) => matchesName(selector.text, gpu.name));
    if (digits) problem += ` (for the name write '*${selector.text}*')`;
  } else if (selector.kind === 'uuid' && fitting.length > 1) {
    problem = `'${selector.text}' is the beginning of ${fitting.length} UUIDs; write more of it`;
  }
  if (problem !== null) {
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', `${option}: ${problem}. ${describeWhatExists(gpus)}`);
  }
}

function missingIndices(first: number, last: number, gpus: readonly GPU[]): string | null {
  const existing = new Set(gpus.map((gpu) => gpu.index));
  // A range may be as long as somebody likes to type it; what exists is short.
  let from = first;
  while (from <= last && existing.has(from)) from++;
  if (from > last) return null;
  const next = Math.min(last + 1, ...[...existing].filter((index) => index > from));
  return next - 1 > from ? `${from} to ${next - 1}` : String(from);
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
