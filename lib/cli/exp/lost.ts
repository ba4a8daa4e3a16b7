import { giveUpTasks, withQueue } from '../../experiments/index.ts';
import type { Command } from '../command.ts';
import { type OptionGroup, type Parsed, usage } from '../options.ts';
import { print } from '../output.ts';
import { locationOf, QUEUE, tasksNamed } from './options.ts';

const GROUPS = [{ options: QUEUE }] as const satisfies readonly OptionGroup[];

async function lost({ values, positionals }: Parsed<typeof GROUPS>): Promise<void> {
  if (positionals.length === 0) {
    throw usage(
      'which tasks? gpu-owner exp lost NAME, or all; gpu-owner exp status lists those that are unknown',
    );
  }
  await withQueue(locationOf(values), async (queue) => {
    const { names, unchanged } = await giveUpTasks(queue, positionals);
    const rest =
      unchanged > 0
        ? ` ${unchanged} ${unchanged === 1 ? 'is not' : 'are not'} unknown, and ${unchanged === 1 ? 'stays as it is' : 'stay as they are'}.`
        : '';
    const next = names.length > 0 ? ' To start again: gpu-owner exp retry NAME.' : '';
    print(`Failed, as lost: ${tasksNamed(names)}.${rest}${next}`);
  });
}

export const COMMAND: Command = {
  usage: '[OPTIONS] NAME|ID ... | all',
  about: `Says that the hosts of unknown tasks are lost, and that nothing of their commands runs any more. Only tasks with \`rerun: never\` are ever unknown: those whose worker was not heard of for long. They are failed then. \`gpu-owner exp retry\` starts them again.`,
  groups: GROUPS,
  operands: { first: ['all'] },
  run: lost,
};
