import type { Sweep } from '../files/index.ts';
import { areDifferent, batchesOf, commandText, NO_COMMAND_TEXT, type Queue } from '../queue/index.ts';
import { type TaskCommand, type TaskSpec, taskId } from '../task/index.ts';

/**
 * The known tasks that have another command than the sweep gives them: how many, and those that have failed with it.
 * @returns null: one of them runs, or is completed
 */
export async function findReplaceable(
  sweep: Sweep,
  queue: Queue,
): Promise<{ count: number; failed: string[] } | null> {
  let count = 0;
  const failed: string[] = [];
  for (const batch of batchesOf(sweep.tasks())) {
    const rows = await queue.lookUp(batch.map(({ parameters }) => taskId(parameters)));
    for (const [at, row] of rows.entries()) {
      if (row === null || !areDifferent(row.task.command, (batch[at] as TaskSpec).command)) continue;
      if (row.state === 'active' || row.state === 'completed') return null;
      count++;
      if (row.state === 'failed') failed.push(row.task.id);
    }
  }
  return count === 0 ? null : { count, failed };
}

/**
 * Refuses a sweep without a command before any task is added, unless its tasks have one from an earlier start.
 * @throws the sweep's error about its missing command
 */
export async function refuseCommandless(sweep: Sweep, queue: Queue): Promise<void> {
  const { commandless } = sweep;
  if (commandless === null) return;
  for (const ids of batchesOf(commandlessIds(sweep))) {
    for (const row of await queue.lookUp(ids)) {
      if (row === null || (['pending', 'active'].includes(row.state) && isNone(row.task.command)))
        throw commandless;
    }
  }
}

function* commandlessIds(sweep: Sweep): Generator<string> {
  for (const { parameters, command } of sweep.samples()) if (isNone(command)) yield taskId(parameters);
}

function isNone(command: TaskCommand): boolean {
  return commandText(command) === NO_COMMAND_TEXT;
}
