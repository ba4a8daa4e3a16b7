import { cancelTasks, withQueue } from '../../experiments/index.ts';
import type { Command } from '../command.ts';
import { type Parsed, usage } from '../options.ts';
import { print } from '../output.ts';
import { locationOf, QUEUE, tasksNamed } from './options.ts';

async function cancel({ values, positionals }: Parsed): Promise<void> {
  if (positionals.length === 0) {
    throw usage('which tasks? gpu-owner exp cancel NAME, or all');
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
  groups: [{ options: QUEUE }],
  operands: { first: ['all'] },
  run: cancel,
};
