import { problem } from '../../config/index.ts';
import { GPUOwnerError } from '../../errors.ts';

/** Where something of a sweep was written: in a file, or on the command line. */
export type Origin = { readonly file: string; readonly line: number } | { readonly option: string };

/** What is wrong, and where: ERR_CONFIGURATION with file and line, or ERR_INVALID_ARGUMENT with the option. */
export function mistake(origin: Origin, text: string, cause?: unknown): GPUOwnerError {
  if ('file' in origin) return problem(origin.file, origin.line, text, cause);
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', `${origin.option}: ${text}`, { cause });
}
