import { loadRunning, withQueue } from '../../sweeps/index.ts';
import type { Command } from '../command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from '../command-line.ts';
import { write } from '../output.ts';
import { locationOf, QUEUE } from './queue-options.ts';

const GROUPS = [{ options: QUEUE }] as const satisfies readonly OptionGroup[];

async function run(parsed: Parsed<typeof GROUPS>): Promise<void> {
  rejectOperands(parsed);
  const { exportResults } = await loadRunning();
  await withQueue(locationOf(parsed.values), (queue) => exportResults(queue, (text) => write(1, text)));
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Prints the results of all completed tasks as one table (CSV), in the order of completion: parameters and metrics of all phases, empty where a task has none.`,
  groups: GROUPS,
  run,
};
