import { problem } from '../../config/index.ts';
import { GPUOwnerError } from '../../errors.ts';

/** The place in a sweep file, or the option, where something was written. */
export type SourceLocation = { readonly file: string; readonly line: number } | { readonly option: string };

/** Makes an error that names the place: ERR_CONFIGURATION with file and line, or ERR_INVALID_ARGUMENT with the option. */
export function mistake(location: SourceLocation, text: string, cause?: unknown): GPUOwnerError {
  if ('file' in location) return problem(location.file, location.line, text, cause);
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', `${location.option}: ${text}`, { cause });
}
