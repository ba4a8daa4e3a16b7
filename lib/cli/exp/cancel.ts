import { GPUOwnerError } from '../../errors.ts';
import { resolveTasks, withQueue } from '../../experiments/index.ts';
import { parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { print } from '../output.ts';
import { placeOf, QUEUE, QUEUE_HELP, tasksNamed } from './options.ts';

const HELP = `Usage: gpu-owner exp cancel [OPTIONS] NAME|ID ... | all

These tasks are not started any more; of those that run the command is ended.
Completed ones stay as they are. \`gpu-owner exp retry\` brings tasks back.

${QUEUE_HELP}
${EVERY_HELP}`;

const OPTIONS = QUEUE;

async function cancel(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  if (positionals.length === 0) {
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', 'which tasks? gpu-owner exp cancel NAME, or all');
  }
  await withQueue(placeOf(values), async (queue) => {
    const all = positionals.length === 1 && positionals[0] === 'all';
    const names = await queue.cancel(all ? 'all' : { ids: await resolveTasks(queue, positionals) });
    const unchanged = all ? 0 : new Set(positionals).size - names.length;
    const rest = unchanged > 0 ? `; ${unchanged} had ended already` : '';
    print(`Cancelled: ${tasksNamed(names)}${rest}.`);
  });
}

export const COMMAND: Command = { run: cancel, help: HELP, options: OPTIONS, operands: { first: ['all'] } };
