import { usageError } from '../../platform/index.ts';
import { cancelTasks, withQueue } from '../../sweeps/index.ts';
import type { Command } from '../command.ts';
import type { OptionGroup, Parsed } from '../command-line.ts';
import { print } from '../output.ts';
import { locationOf, QUEUE, tasksNamed } from './queue-options.ts';

const GROUPS = [{ options: QUEUE }] as const satisfies readonly OptionGroup[];

async function cancel({ values, positionals }: Parsed<typeof GROUPS>): Promise<void> {
  if (positionals.length === 0) {
    throw usageError('which tasks? gpu-owner exp cancel NAME, or all');
  }
  await withQueue(locationOf(values), async (queue) => {
    const { names, unchanged } = await cancelTasks(queue, positionals);
    const rest = unchanged > 0 ? `; ${unchanged} had already ended` : '';
    print(`Cancelled: ${tasksNamed(names)}${rest}.`);
  });
}

export const COMMAND: Command = {
  usage: '[OPTIONS] NAME|ID ... | all',
  about: `Cancels tasks: waiting tasks are not started, and the commands of running tasks are stopped. Completed tasks stay completed. \`gpu-owner exp retry\` undoes it.`,
  groups: GROUPS,
  operands: { first: ['all'] },
  run: cancel,
};
