// A sweep whose phase and seeds are those of tasks that the queue has from before.
import { batchesOf, type Queue } from '../queue/index.ts';
import { columnOf, columnsOfTable, NAME_COLUMN } from '../results/index.ts';
import { placeOf, type Sweep } from '../sweep/index.ts';
import { type TaskSpec, taskId } from '../task/index.ts';

/** The sweep as a project knows it: with the phase of its grid, and the seeds that its tasks have there. */
export async function asKnown(
  sweep: Sweep,
  queue: Pick<Queue, 'lookUp' | 'counts' | 'tasks'> | null,
  project: string,
): Promise<Sweep> {
  return withKnownSeeds(await inKnownPlaces(await inOwnPhase(sweep, queue, project), queue), queue);
}

const GRID_PHASE = /^grid(?:-\d+)?$/;

/** So many phases of grids are looked for on the disk. */
const MAX_SEARCHED = 16;

/**
 * Names an unnamed grid: grids with other parameters have other phases, `grid`, `grid-2` and so on, so that their tables don't mix. A grid
 * with the same parameters goes on in its phase.
 */
async function inOwnPhase(sweep: Sweep, queue: Pick<Queue, 'tasks'> | null, project: string): Promise<Sweep> {
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

/** Runs of Hydra that the queue has stay where they are, and new ones come beside them. */
async function inKnownPlaces(sweep: Sweep, queue: Pick<Queue, 'lookUp'> | null): Promise<Sweep> {
  if (sweep.placed === undefined || queue === null) return sweep;
  const numbers = new Map<string, number>();
  let directory: string | null = null;
  for (const batch of batchesOf(sweep.tasks())) {
    for (const row of await queue.lookUp(batch.map(({ parameters }) => taskId(parameters)))) {
      const place = row && placeOf(row.task.command);
      if (!place) continue;
      directory ??= place.directory;
      numbers.set(row.task.id, place.number);
    }
  }
  return directory === null ? sweep : sweep.placed({ directory, numbers });
}

/**
 * The sweep as the queue knows it. A queue from before tasks got a seed by default has them without one: they are these tasks, and
 * stay as they are.
 */
async function withKnownSeeds(sweep: Sweep, queue: Pick<Queue, 'lookUp' | 'counts'> | null): Promise<Sweep> {
  if (queue === null || Object.values(await queue.counts()).every((count) => count === 0)) return sweep;
  const known = new Set<string>();
  for (const ids of batchesOf(unseededIds(sweep))) {
    for (const row of await queue.lookUp(ids)) if (row !== null) known.add(row.task.id);
  }
  if (known.size === 0) return sweep;
  return {
    ...sweep,
    *tasks() {
      for (const spec of sweep.tasks()) {
        const parameters = unseeded(spec);
        yield spec.hasDefaultSeed && known.has(taskId(parameters)) ? { ...spec, parameters } : spec;
      }
    },
  };
}

/** The ids that tasks would have without their default seed. */
function* unseededIds(sweep: Sweep): Generator<string> {
  for (const spec of sweep.tasks()) if (spec.hasDefaultSeed) yield taskId(unseeded(spec));
}

function unseeded({ parameters }: TaskSpec): TaskSpec['parameters'] {
  const { seed: _, ...others } = parameters;
  return others;
}
