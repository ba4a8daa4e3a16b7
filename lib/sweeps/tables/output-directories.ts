import { accessSync, constants, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { errorCode, GPUOwnerError } from '../../errors.ts';
import { errorReason, listWords, sanitize, statusOf } from '../../platform/index.ts';
import { whyReplaceable } from '../project/index.ts';
import { outputDirectoriesOf, type TaskSpec } from '../task/index.ts';

/** Directories that an error names. */
const NAMED = 3;

/**
 * Refuses a sweep whose tables and logs couldn't be written here, before anything of it is added. Makes no directories: problems that show
 * only then, or only on other machines, are told when they happen.
 * @throws ERR_CONFIGURATION
 */
export function refuseUnusable(tasks: Iterable<TaskSpec>, project: string): void {
  const { uid } = statSync(project);
  const bad: [directory: string, why: string][] = [];
  for (const outputDirectory of new Set(outputDirectoriesOf(tasks))) {
    const path = resolve(project, outputDirectory);
    const why = whyReplaceable(path, uid) ?? whyNotWritable(path);
    if (why !== null) bad.push([outputDirectory, why]);
  }
  if (bad.length > 0) throw refusal(bad);
}

function refusal(bad: readonly (readonly [string, string])[]): GPUOwnerError {
  const more = bad.length - NAMED;
  const list = bad
    .slice(0, NAMED)
    .map(([directory, why]) => `'${sanitize(directory, 200)}' (${sanitize(why, 300)})`);
  return new GPUOwnerError(
    'ERR_CONFIGURATION',
    `results can't be written to the output_dir ${listWords([...list, ...(more > 0 ? [`${more} more`] : [])])}. ` +
      'Nothing was added. Name another output_dir, or make that one writable, and start again.',
  );
}

/** Why nothing can be written in a directory, or it can't be made; null: as far as can be seen, it can. */
function whyNotWritable(path: string): string | null {
  try {
    if (!statSync(path).isDirectory()) return `${path} is not a directory`;
    accessSync(path, constants.W_OK | constants.X_OK);
    return null;
  } catch (error) {
    const code = errorCode(error);
    if (code !== 'ENOENT' && code !== 'ENOTDIR') return `${path}: ${errorReason(error)}`;
    return statusOf(path)?.kind === 'link'
      ? `${path} is a symbolic link that leads nowhere`
      : whyNotWritable(dirname(path));
  }
}
