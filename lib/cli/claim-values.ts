// What the options of a claim, as `claim-options.ts` has them, mean for the API.
import { type ClaimOptions, checkOptions, type Settings } from '../claims/index.ts';
import { usageError } from '../platform/index.ts';
import { CRITERIA, type WAIT_BY_DEFAULT } from './claim-options.ts';
import type { AnyValues, InferValues } from './command-line.ts';

/** Options of the API by what they are called here. */
const KEYS: Readonly<Record<string, string>> = {
  ...Object.fromEntries(
    [
      'memory',
      'together',
      'urgent',
      'placeholder',
      'visible-devices',
      'lock-timeout',
      ...Object.keys(CRITERIA),
    ].map((name) => [name, camelCase(name)]),
  ),
  gpus: 'count',
};

/** The options of the API as users of the command know them, for messages. */
export const NAMES: Readonly<Record<string, string>> = {
  ...Object.fromEntries(Object.entries(KEYS).map(([name, key]) => [key, `--${name}`])),
  count: '-n',
};

/** The options of the API that the command line gives. The API checks their values. */
export function claimOptions(values: AnyValues): ClaimOptions {
  const options: Record<string, unknown> = {};
  for (const [name, key] of Object.entries(KEYS)) {
    const value = values[name];
    if (name === 'gpus') refuseList(value);
    if (value !== undefined) options[key] = name === 'gpus' ? numberIfOne(value) : value;
  }
  return options;
}

/** Checks the options of a claim. @param details as for `checkOptions` @throws ERR_INVALID_ARGUMENT */
export function checkClaim(values: AnyValues, details?: Parameters<typeof checkOptions>[3]): Settings {
  return checkOptions(claimOptions(values), [], NAMES, details);
}

/** Indices are meant where a list is: other tools have them here. @throws ERR_INVALID_ARGUMENT */
function refuseList(gpus: AnyValues[string]): void {
  if (typeof gpus !== 'string' || !/^\d+(?:[,-]\d+)+$/.test(gpus)) return;
  throw usageError(
    `-n: '${gpus.slice(0, 60)}' is not a number of GPUs; use 1, 2, …, or, to choose among these, --devices ${gpus.slice(0, 60)}`,
  );
}

/** How long to wait: null = not at all. @param byDefault whether to wait if nothing is said */
export function waitOption(
  values: InferValues<typeof WAIT_BY_DEFAULT>,
  byDefault: boolean,
): { maxWait: string | null } | null {
  const limit = typeof values.wait === 'string' ? values.wait : undefined;
  if (values['no-wait'] && values.wait) throw usageError('--wait and --no-wait contradict each other');
  if (limit !== undefined) return { maxWait: limit };
  if (values['no-wait']) return null;
  return values.wait || byDefault ? { maxWait: null } : null;
}

/** Without a regular expression: V8 would compile that at each start, for half a millisecond. */
function camelCase(name: string): string {
  const [first = '', ...others] = name.split('-');
  return first + others.map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join('');
}

/** Left as text where it isn't a number, so that the error can show what was typed. */
function numberIfOne(value: unknown): unknown {
  return typeof value === 'string' && /^-?\d{1,9}(\.\d{1,9})?$/.test(value) ? Number(value) : value;
}
