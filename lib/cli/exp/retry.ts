import { usageError } from '../../platform/index.ts';
import { RETRIED_STATES, retryTasks, withQueue } from '../../sweeps/index.ts';
import type { Command } from '../command.ts';
import type { OptionGroup, Parsed } from '../command-line.ts';
import { print } from '../output.ts';
import { locationOf, QUEUE, tasksNamed } from './queue-options.ts';

const GROUPS = [{ options: QUEUE }] as const satisfies readonly OptionGroup[];

async function retry({ values, positionals }: Parsed<typeof GROUPS>): Promise<void> {
  if (positionals.length === 0) {
    throw usageError('which tasks? gpu-owner exp retry failed, or NAME ...');
  }
  await withQueue(locationOf(values), async (queue) => {
    const { names, unchanged } = await retryTasks(queue, positionals);
    const manager = await queue.manager();
    const rest =
      unchanged > 0
        ? ` ${unchanged === 1 ? '1 task already runs or waits' : `${unchanged} tasks already run or wait`}.`
        : '';
    const who =
      names.length > 0 && manager === null
        ? ` gpu-owner exp run, or exp manager, starts ${names.length === 1 ? 'it' : 'them'}.`
        : '';
    print(`${names.length === 0 ? 'No task' : tasksNamed(names)} will start again.${rest}${who}`);
  });
}

export const COMMAND: Command = {
  usage: '[OPTIONS] failed|cancelled|NAME|ID ...',
  about: `Starts tasks again as if they were new: all failed ones, all cancelled ones, or those that you name. A completed task loses its result and its rows in the tables.`,
  groups: GROUPS,
  operands: { first: RETRIED_STATES },
  run: retry,
};
