import { realpathSync } from 'node:fs';
import { basename, dirname, join, relative, resolve } from 'node:path';

const TABLE_NAME = 'final_results.csv';

/** Where the table of an output directory is. Two names of one directory have one table. @param project absolute */
export function tablePath(project: string, outputDirectory: string): string {
  return join(real(resolve(project, outputDirectory)), TABLE_NAME);
}

/** For people: from the project on, if it is in there. */
export function shownPath(project: string, path: string): string {
  const inProject = relative(real(project), path);
  return inProject.startsWith('..') ? path : inProject;
}

/** With all links resolved as far as it exists. */
function real(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    const parent = dirname(path);
    return parent === path ? path : join(real(parent), basename(path));
  }
}
