import { GPUOwnerError } from '../errors.ts';
import { isAbsolutePath } from './schema.ts';
import { listWords, showValue } from './text.ts';

const PATH_MAX = 4096;

export function usageError(message: string): GPUOwnerError {
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', message);
}

/** The error for the value of an option. @param what 'valid', or more exactly what it isn't @param right what to do: 'use …' */
export function invalidValue(option: string, value: unknown, what: string, right: string): GPUOwnerError {
  return usageError(`${option}: ${showValue(value)} is not ${what}; ${right}`);
}

/** @throws ERR_INVALID_ARGUMENT */
export function oneOf<Value extends string>(
  value: unknown,
  allowed: readonly Value[],
  option: string,
): Value {
  const found = allowed.find((each) => each === value);
  if (found !== undefined) return found;
  throw invalidValue(option, value, 'valid', `use ${listWords(allowed.map(showValue), 'or')}`);
}

/** @throws ERR_INVALID_ARGUMENT */
export function parseAbsolutePath(value: unknown, option: string): string {
  if (isAbsolutePath(value) && value.length < PATH_MAX) return value;
  throw invalidValue(option, value, 'an absolute path', 'use one such as /run/lock/gpu-owner');
}
