import { GPUOwnerError } from '../errors.ts';
import { sanitize, showValue } from '../platform/index.ts';

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
