// Names of phases and parameters, and output directories.

import { normalize } from 'node:path';
import { sanitize, showValue } from '../../platform/index.ts';

export function defaultOutputOf(phase: string): string {
  return `results_${phase}`;
}

const MAX_NAME_LENGTH = 100;

/** Checks a parameter's name. @param refuse makes the error */
export function checkParameterName(name: string, refuse: (why: string) => Error): void {
  if (name === '') throw refuse('a parameter needs a name');
  if (name.split('.').includes('__proto__')) throw refuse(`a parameter can't be called ${name}`);
  if (name.length > MAX_NAME_LENGTH)
    throw refuse(`${showValue(name)} is longer than ${MAX_NAME_LENGTH} characters`);
  if (sanitize(name) !== name || /[{}]/.test(name)) {
    throw refuse(
      `the name ${showValue(name)} has characters that aren't allowed in names of parameters (braces, control characters, blanks at its ends)`,
    );
  }
}

/** Checks a phase's name, which begins the names of tasks and of files. @param refuse makes the error */
export function checkPhaseName(name: string, refuse: (why: string) => Error): void {
  if (name === '') throw refuse('a phase needs a name');
  if (name.length > MAX_NAME_LENGTH)
    throw refuse(`the name ${showValue(name)} is longer than ${MAX_NAME_LENGTH} characters`);
  if (sanitize(name) !== name || /^[-.]|[/\\{}*?]|\s/.test(name)) {
    throw refuse(
      `a phase can't be called ${showValue(name)}: names of tasks and directories begin with it; use letters, digits, _ and -`,
    );
  }
}

/** Limits of Linux: for a name, and for a path with room for what is below it. */
const MAX_FILE_NAME_BYTES = 255;
const MAX_PATH_BYTES = 3800;

/**
 * An output directory as destinations have it: `results/./a/` is `results/a`. Relative ones are the project's; absolute ones and `..`
 * are allowed, since results often go to another disk.
 * @param refuse makes the error for what can't be a directory
 */
export function outputDirectory(path: string, refuse: (why: string) => Error): string {
  const shown = `output_dir '${sanitize(path, 80)}'`;
  if (path.trim() === '') throw refuse('output_dir is empty; the current directory is .');
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  if (/[\x00-\x1f\x7f]/.test(path)) throw refuse(`${shown} has a line break or another control character`);
  if (path.startsWith('~')) {
    throw refuse(
      `${shown}: only a shell expands ~; write the path of the home directory, or ./~ for such a name`,
    );
  }
  const normal = normalize(path).replace(/(?<=.)\/$/, '');
  if (Buffer.byteLength(normal) > MAX_PATH_BYTES)
    throw refuse(`${shown} is longer than ${MAX_PATH_BYTES} bytes`);
  const long = normal.split('/').find((name) => Buffer.byteLength(name) > MAX_FILE_NAME_BYTES);
  if (long !== undefined) throw refuse(`${shown}: a name in it is longer than ${MAX_FILE_NAME_BYTES} bytes`);
  return normal;
}
