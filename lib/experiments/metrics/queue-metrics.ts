import { overview } from '../manager/index.ts';
import { type Queue, STATES } from '../queue/index.ts';
import type { Family } from './exposition.ts';

/** How an experiment stands, as its queue has it. @param manages does this process write the tables of results? */
export async function queueFamilies(queue: Queue, manages: boolean): Promise<Family[]> {
  const { counts, running, pause } = await overview(queue);
  const single = (name: string, help: string, value: number): Family => ({
    name,
    type: 'gauge',
    help,
    samples: [{ labels: {}, value }],
  });
  return [
    {
      name: 'gpu_owner_tasks',
      type: 'gauge',
      help: 'Tasks of the queue, by state.',
      samples: STATES.map((state) => ({ labels: { state }, value: counts[state] })),
    },
    single('gpu_owner_attempts_running', 'Tasks that somebody runs now.', running.length),
    {
      name: 'gpu_owner_paused',
      type: 'gauge',
      help: 'Whether no tasks are given out (1), and who wanted that.',
      samples: (['person', 'failures'] as const).map((by) => ({
        labels: { by },
        value: pause?.by === by ? 1 : 0,
      })),
    },
    single('gpu_owner_manages', 'Whether this process writes the tables of results (1).', manages ? 1 : 0),
  ];
}
