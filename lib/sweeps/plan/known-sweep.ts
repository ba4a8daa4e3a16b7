// A sweep whose phase is that of tasks that the queue has from before.

import type { Sweep } from '../files/index.ts';
import type { Queue } from '../queue/index.ts';
import { columnOf, columnsOfTable, NAME_COLUMN } from '../tables/index.ts';

const GRID_PHASE = /^grid(?:-\d+)?$/;

/** So many phases of grids are looked for on the disk. */
const MAX_SEARCHED = 16;

/**
 * Names an unnamed grid: grids with other parameters have other phases, `grid`, `grid-2` and so on, so that their tables don't mix. A grid
 * with the same parameters goes on in its phase.
 */
export async function asKnown(
  sweep: Sweep,
  queue: Pick<Queue, 'tasks'> | null,
  project: string,
): Promise<Sweep> {
  const { unnamedGrid } = sweep;
  if (unnamedGrid === null) return sweep;
  const wanted = JSON.stringify(unnamedGrid.parameters);
  const sameOrNamed = (phase: string) => (phase === 'grid' ? sweep : unnamedGrid.named(phase));
  const taken = new Set<string>();
  for await (const { task } of queue?.tasks() ?? []) {
    const parameters = JSON.stringify(Object.keys(task.parameters).sort());
    for (const { phase } of task.destinations) {
      if (!GRID_PHASE.test(phase)) continue;
      if (parameters === wanted) return sameOrNamed(phase);
      taken.add(phase);
    }
  }
  // Without a queue, or with a new one, tables tell.
  let free: string | null = null;
  for (let number = 1; number <= MAX_SEARCHED || free === null; number++) {
    const phase = number === 1 ? 'grid' : `grid-${number}`;
    if (taken.has(phase)) continue;
    const directory = unnamedGrid.directoryOf(phase);
    const columns = directory === null ? null : await columnsOfTable(project, directory);
    if (columns === null) free ??= phase;
    else if (!isOfOthers(columns, unnamedGrid.parameters)) return sameOrNamed(phase);
    if (directory === null) break;
  }
  return sameOrNamed(free as string);
}

/** Whether a table has rows of ours, of a grid with other parameters. */
function isOfOthers(columns: readonly string[], parameters: readonly string[]): boolean {
  return columns.includes(NAME_COLUMN) && parameters.some((name) => !columns.includes(columnOf(name)));
}
