import { GPUOwnerError } from '../errors.ts';
import { listWords, sanitize, showValue } from '../text.ts';
import { byPlace, isInstance, label } from './instances.ts';
import type { GPU } from './types.ts';

/**
 * Names GPUs: an index of NVML (3 or '3', as in `nvidia-smi`), a range ('0-3'), a UUID or a beginning of one
 * ('GPU-5d2c'), a name or a part of it ('A100'), a pattern ('*RTX 40*'). Several in one text are separated by commas.
 * A MIG instance is named by its GPU's index and its own number ('0:2'), its UUID ('MIG-89c8'), a name ('1g.10gb'). What
 * names a GPU by index or UUID names its instances, too.
 */
export type DeviceSelector = number | string;

/** A selector taken apart. `text` is how the user wrote it. */
export type Selector =
  | { kind: 'index'; index: number; text: string }
  | { kind: 'range'; first: number; last: number; text: string }
  | { kind: 'instance'; index: number; instance: number; text: string }
  | { kind: 'uuid'; prefix: string; text: string }
  | { kind: 'name'; pattern: string; text: string };

const EXAMPLES =
  "an index (0), a range ('0-3'), a UUID ('GPU-5d2c…'), a MIG instance ('0:2', 'MIG-89c8…') or a name ('A100', '*RTX*')";

/**
 * Takes selectors apart. @param option names the option in errors.
 * @throws {GPUOwnerError} ERR_INVALID_ARGUMENT when one can't name a GPU on any machine.
 */
export function parseSelectors(value: unknown, option: string): Selector[] {
  const values = Array.isArray(value) ? value : [value];
  return values.flatMap((each: unknown) =>
    typeof each === 'string'
      ? each.split(',').map((part) => parseSelector(part.trim(), option, each))
      : [parseSelector(each, option, each)],
  );
}

function parseSelector(value: unknown, option: string, given: unknown): Selector {
  const problem = (what: string) =>
    new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `${option}: ${showValue(given)} ${what}; right are ${EXAMPLES}`,
    );
  if (typeof value === 'number') {
    if (!Number.isSafeInteger(value) || value < 0) throw problem("isn't a GPU");
    return { kind: 'index', index: value + 0, text: String(value + 0) };
  }
  if (typeof value !== 'string') throw problem("isn't a GPU");
  if (value === '') throw problem(given === '' ? "isn't a GPU" : 'has an empty entry');
  const text = sanitize(value, 100);
  if (/^-?\d+$/.test(value)) {
    const index = Number(value);
    if (!Number.isSafeInteger(index) || index < 0) throw problem("isn't the index of a GPU");
    return { kind: 'index', index, text };
  }
  const range = /^(\d{1,9})\s*-\s*(\d{1,9})$/.exec(value);
  if (range) {
    const [first, last] = [Number(range[1]), Number(range[2])];
    if (first > last) throw problem(`runs backwards (${last}-${first}?)`);
    return { kind: 'range', first, last, text };
  }
  const instance = /^(\d{1,9})\s*:\s*(\d{1,9})$/.exec(value);
  if (instance) return { kind: 'instance', index: Number(instance[1]), instance: Number(instance[2]), text };
  if (/^GPU-/i.test(value)) {
    if (!/^GPU-[0-9a-f][0-9a-f-]{0,35}$/i.test(value)) throw problem("isn't a UUID of a GPU");
    return { kind: 'uuid', prefix: value.toLowerCase(), text };
  }
  if (/^MIG-/i.test(value)) {
    // The second form is that of drivers before R470.
    if (!/^MIG-([0-9a-f][0-9a-f-]{0,35}|GPU-[0-9a-f-]{1,36}(\/\d+){0,2})$/i.test(value))
      throw problem("isn't a UUID of a MIG instance");
    return { kind: 'uuid', prefix: value.toLowerCase(), text };
  }
  if (value.length > 100 || text !== value) throw problem("isn't the name of a GPU");
  return { kind: 'name', pattern: value, text };
}

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
