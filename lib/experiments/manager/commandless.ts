import { commandText, NO_COMMAND_TEXT, type Queue } from '../queue/index.ts';
import { findRecordedTasks } from '../results/index.ts';
import type { Sweep } from '../sweep/index.ts';
import { type TaskCommand, taskId } from '../task/index.ts';

/** Tasks per question to the queue. */
const BATCH = 500;

/**
 * Refuses a sweep without a command, before anything of it is added, unless all that is left of it has one: from an earlier start.
 * @throws what the sweep says is wrong then
 */
export async function refuseCommandless(
  sweep: Sweep,
  queue: Pick<Queue, 'lookUp'>,
  project: string,
): Promise<void> {
  const { commandless } = sweep;
  if (commandless === null) return;
  let recorded: ReadonlyMap<string, string> | null = null;
  let batch: string[] = [];
  const check = async () => {
    for (const [at, row] of (await queue.lookUp(batch)).entries()) {
      if (row !== null) {
        if (['pending', 'active'].includes(row.state) && isNone(row.task.command)) throw commandless;
        continue;
      }
      recorded ??= await findRecordedTasks(sweep, project, queue);
      if (!recorded.has(batch[at] as string)) throw commandless;
    }
    batch = [];
  };
  for (const { parameters, command } of sweep.tasks()) {
    if (isNone(command) && batch.push(taskId(parameters)) === BATCH) await check();
  }
  await check();
}

function isNone(command: TaskCommand): boolean {
  return commandText(command) === NO_COMMAND_TEXT;
}
