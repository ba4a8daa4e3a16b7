import type { Sweep } from '../files/index.ts';
import { batchesOf, commandText, NO_COMMAND_TEXT, type Queue } from '../queue/index.ts';
import { type TaskCommand, taskId } from '../task/index.ts';

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
