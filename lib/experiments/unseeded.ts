import type { Queue } from './queue/index.ts';
import type { Sweep } from './sweep/index.ts';
import { type TaskSpec, taskId } from './task/index.ts';

/** Tasks per question to the queue. */
const BATCH = 500;

/**
 * The sweep as the queue knows it. A queue from before tasks got a seed by default has them without one: they are these tasks, and
 * stay as they are.
 */
export async function asKnown(sweep: Sweep, queue: Pick<Queue, 'lookUp' | 'counts'> | null): Promise<Sweep> {
  if (queue === null || Object.values(await queue.counts()).every((count) => count === 0)) return sweep;
  const known = new Set<string>();
  let batch: string[] = [];
  const lookUp = async () => {
    for (const row of await queue.lookUp(batch)) if (row !== null) known.add(row.task.id);
    batch = [];
  };
  for (const spec of sweep.tasks()) {
    if (spec.hasDefaultSeed && batch.push(taskId(unseeded(spec))) === BATCH) await lookUp();
  }
  await lookUp();
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

function unseeded({ parameters }: TaskSpec): TaskSpec['parameters'] {
  const { seed: _, ...others } = parameters;
  return others;
}
