import type { Sweep } from '../files/index.ts';
import { areDifferent, batchesOf, commandText, NO_COMMAND_TEXT, type Queue } from '../queue/index.ts';
import { type TaskCommand, type TaskSpec, taskId } from '../task/index.ts';

/**
 * The known tasks that have another command than the sweep gives them.
 * @returns how many can get it, those of them that have failed, and how many others run or are completed
 */
export async function findOtherCommands(
  sweep: Sweep,
  queue: Queue,
): Promise<{ count: number; failed: string[]; kept: number }> {
  const found = { count: 0, failed: [] as string[], kept: 0 };
  for (const batch of batchesOf(sweep.tasks())) {
    const rows = await queue.lookUp(batch.map(({ parameters }) => taskId(parameters)));
    for (const [at, row] of rows.entries()) {
      if (row === null || !areDifferent(row.task.command, (batch[at] as TaskSpec).command)) continue;
      if (row.state === 'active' || row.state === 'completed') found.kept++;
      else found.count++;
      if (row.state === 'failed') found.failed.push(row.task.id);
    }
  }
  return found;
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
