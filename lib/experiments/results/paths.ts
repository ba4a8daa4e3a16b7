import { existsSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { realPath } from '../project/index.ts';

const TABLE_NAME = 'final_results.csv';

/** Where the table of an output directory is. Two names of one directory have one table. @param project absolute */
export function tablePath(project: string, outputDirectory: string): string {
  return join(realPath(resolve(project, outputDirectory), project), TABLE_NAME);
}

/**
 * The table in the directory of the project itself, where a later version of the original system has the rows of all output directories.
 * It is read, and never written. null: there is none
 */
export function commonTablePath(project: string): string | null {
  const path = tablePath(project, '.');
  return existsSync(path) ? path : null;
}

/** For people: from the project on, if it is in there. */
export function shownPath(project: string, path: string): string {
  const inProject = relative(realPath(project, project), path);
  return inProject.startsWith('..') ? path : inProject;
}
