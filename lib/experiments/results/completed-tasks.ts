import { warn } from '../../platform/index.ts';
import type { Queue } from '../queue/index.ts';
import type { Sweep } from '../sweep/index.ts';
import { taskId } from '../task/index.ts';
import { findResults, type Sought } from './find.ts';

/** Tasks of larger sweeps are not compared with tables: all of them would have to be kept. */
const MOST_TASKS = 1_000_000;

/**
 * Which tasks of a sweep have their rows in tables of results: their ids, and the tables. Only for those who look: nothing is
 * repaired, and a table that can't be read is warned about and passed over.
 */
export async function recordedTasks(
  sweep: Sweep,
  project: string,
  queue: Pick<Queue, 'lookUp'> | null,
): Promise<ReadonlyMap<string, string>> {
  if (sweep.size > MOST_TASKS) return new Map();
  const isEnded = async (ids: readonly string[]) => {
    const rows = queue === null ? [] : await queue.lookUp(ids);
    return rows.map((row) => row?.state === 'completed' || row?.state === 'active');
  };
  return findResults(project, soughtIn(sweep), warn, isEnded);
}

function* soughtIn(sweep: Sweep): Generator<Sought> {
  for (const { parameters, outputDirectory, phase } of sweep.tasks()) {
    yield { id: () => taskId(parameters), parameters, outputDirectory, phase };
  }
}
