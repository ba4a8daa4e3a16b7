import { normalize } from 'node:path';
import { sanitize } from '../../platform/index.ts';

/** Limits of Linux: for a name, and for a path with room for what is below it. */
const LONGEST_NAME = 255;
const LONGEST_PATH = 3800;

/**
 * An output directory as places have it: `results/./a/` is `results/a`. Relative ones are the project's; absolute ones and `..`
 * are allowed, since results often go to another disk.
 * @param refuse makes the error for what can't be a directory
 */
export function outputDirectory(path: string, refuse: (why: string) => Error): string {
  const shown = `output_dir '${sanitize(path, 80)}'`;
  if (path.trim() === '') throw refuse('output_dir is empty; the current directory is .');
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  if (/[\x00-\x1f\x7f]/.test(path))
    throw refuse(`${shown} has a line break or another control character in it`);
  if (path.startsWith('~')) {
    throw refuse(
      `${shown}: ~ is filled in by shells only; write the home directory out, or ./~ for such a name`,
    );
  }
  const normal = normalize(path).replace(/(?<=.)\/$/, '');
  if (Buffer.byteLength(normal) > LONGEST_PATH) throw refuse(`${shown} is longer than ${LONGEST_PATH} bytes`);
  const long = normal.split('/').find((name) => Buffer.byteLength(name) > LONGEST_NAME);
  if (long !== undefined) throw refuse(`${shown}: a name in it is longer than ${LONGEST_NAME} bytes`);
  return normal;
}
