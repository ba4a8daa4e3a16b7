// Words of a command line that no command takes, and what was meant by them.
import { GPUOwnerError } from '../errors.ts';
import { closest, durationsOf, listWords, sanitize } from '../platform/index.ts';

/** A command or an option that this version doesn't have: another one may. */
export class UnknownWordError extends GPUOwnerError {
  /** The message without its remedy. */
  readonly unknown: string;

  constructor(unknown: string, remedy: string) {
    super('ERR_INVALID_ARGUMENT', `${unknown}; ${remedy}`);
    this.unknown = unknown;
  }
}

export function unknownOption(given: string, names: readonly string[]): GPUOwnerError {
  const meant = given.startsWith('--') ? closest(given.slice(2), names) : null;
  const remedy = meant === null ? 'see --help' : `did you mean --${meant}?`;
  return new UnknownWordError(`there is no option ${sanitize(given, 60)}`, remedy);
}

/** The right form of `--wait` or `--watch` where the word after it is its duration, which only `--wait=DURATION` can have; else null. */
export function durationAfterWait(values: Readonly<Record<string, unknown>>, word: string): string | null {
  const name = ['wait', 'watch'].find((each) => values[each] === true);
  const [, amount, unit] = /^(\d+(?:\.\d+)?)(ms|s|sec|m|min|h|d)?$/.exec(word) ?? [];
  if (name === undefined || amount === undefined) return null;
  if (unit !== undefined) return `--${name}=${word}`;
  const durations = name === 'wait' ? durationsOf(amount) : [`${amount}s`];
  return listWords(
    durations.map((each) => `--${name}=${each}`),
    'or',
  );
}
