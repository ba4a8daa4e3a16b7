import { checkConventions } from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { conventionsInUse, safeGPUFiles } from '../conventions/index.ts';
import { isDirectory, listWords } from '../platform/index.ts';
import type { Report } from './finding.ts';
import { reportSharers } from './stuck-claimant.ts';

/** Other tools that lock GPUs here, by the directories in which they have their locks. */
export function examineConventions(report: Report): void {
  report.step('looking for lock files of other tools');
  const found = conventionsInUse(choice())
    .map((convention) => ({ ...convention, paths: convention.paths.filter(isDirectory) }))
    .filter(({ paths }) => paths.length > 0);
  for (const { name, active, why, paths } of found) {
    const honoured = active ? 'its locks are honoured' : `its locks don't count: ${why}`;
    report.add('convention-in-use', `${name}: ${listWords(paths)}; ${honoured}.`);
  }
  for (const path of safeGPUFiles()) reportSharers(report, path);
  if (found.length === 0) report.add('conventions', 'No lock files of other tools.');
}

/** A mistake in what says so is another subject's finding. */
function choice(): 'auto' | readonly string[] {
  try {
    return checkConventions(undefined, loadConfiguration(), 'conventions');
  } catch {
    return 'auto';
  }
}
